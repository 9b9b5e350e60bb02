// Launchers with every kind of parameter a binding knows; each writes what arrived.
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <cstdint>

template <typename T>
__global__ void copy_kernel(const T* x, T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}

template <typename T>
__global__ void store_kernel(T* out, T value) {
  *out = value;
}

#define COPY(NAME, T)                                                                        \
  extern "C" int copy_##NAME(const T* __restrict__ x, T* y, int n, cudaStream_t stream) {    \
    copy_kernel<T><<<1, 64, 0, stream>>>(x, y, n);                                           \
    return static_cast<int>(cudaGetLastError());                                             \
  }
#define STORE(NAME, T)                                                                       \
  extern "C" cudaError_t store_##NAME(T* out, T value, cudaStream_t stream) {                \
    store_kernel<T><<<1, 1, 0, stream>>>(out, value);                                        \
    return cudaGetLastError();                                                               \
  }

COPY(float, float)
COPY(double, double)
COPY(half, __half)
COPY(bf16, __nv_bfloat16)
COPY(e4m3, __nv_fp8_e4m3)
COPY(e5m2, __nv_fp8_e5m2)
COPY(i8, int8_t)
COPY(u8, uint8_t)
COPY(i16, int16_t)
COPY(u16, uint16_t)
COPY(i32, int32_t)
COPY(u32, uint32_t)
COPY(i64, int64_t)
COPY(u64, uint64_t)
COPY(bool, bool)
COPY(complex, cuFloatComplex)
COPY(float4, float4)
COPY(half2, __half2)
COPY(uchar4, uchar4)

STORE(i8, int8_t)
STORE(u8, uint8_t)
STORE(i16, int16_t)
STORE(u16, uint16_t)
STORE(i32, int)
STORE(u32, unsigned)
STORE(i64, long)
STORE(u64, size_t)
STORE(bool, bool)
STORE(float, float)
STORE(double, double)
STORE(half, half)
STORE(bf16, nv_bfloat16)

using real = float;
typedef const real* input_t;
enum class Mode : int { copy = 1, negate = 2 };
typedef enum { plus = 3, minus = 4 } Sign;

__global__ void signed_kernel(const float* x, float* y, int n, int mode) {
  int i = threadIdx.x;
  if (i < n) y[i] = mode * x[i];
}

extern "C" {
void with_aliases(input_t x, real* y, int n, Mode mode, Sign sign, cudaStream_t stream) {
  signed_kernel<<<1, 64, 0, stream>>>(x, y, n, static_cast<int>(mode) * 10 + sign);
}

// The address, so that None shows; and any dtype.
int take_anything(const void* x, int64_t* out, cudaStream_t stream) {
  store_kernel<int64_t><<<1, 1, 0, stream>>>(out, reinterpret_cast<int64_t>(x));
  return 0;
}

int copy_column(const float* x, float* y, int rows, int step, cudaStream_t stream);

int fail(int code, cudaStream_t) { return code; }

void too_many_threads(float* x, cudaStream_t stream) { store_kernel<float><<<1, 4096, 0, stream>>>(x, 1.0f); }

void out_of_bounds(float* x, int at, cudaStream_t stream) { store_kernel<float><<<1, 1, 0, stream>>>(x + at, 1.0f); }

void no_arguments(cudaStream_t) {}

int take_five(int a, int b, float c, float d, bool e, cudaStream_t) { return a + b + int(c + d) + e; }
}

__global__ void column_kernel(const float* x, float* y, int rows, int step) {
  int i = threadIdx.x;
  if (i < rows) y[i] = x[i * step];
}

int copy_column(const float* x, float* y, int rows, int step, cudaStream_t stream) {
  column_kernel<<<1, 64, 0, stream>>>(x, y, rows, step);
  return 0;
}
