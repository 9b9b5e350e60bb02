// GELU, exact form: one read and one write of memory.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int PACKS = 4;  // a thread's loads in flight before the first is used

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

template <int WIDTH>
__global__ void __launch_bounds__(THREADS) gelu_kernel(const float* __restrict__ x, float* __restrict__ y, long long size) {
  using Floats = Pack<float, WIDTH>;
  const long long packs = size / WIDTH;
  const long long first = static_cast<long long>(blockIdx.x) * (THREADS * PACKS) + threadIdx.x;
  Floats values[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const long long i = first + k * THREADS;
    if (i < packs) values[k] = reinterpret_cast<const Floats*>(x)[i];
  }
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const long long i = first + k * THREADS;
    if (i >= packs) continue;
#pragma unroll
    for (float& value : values[k].item) value = gelu(value);
    reinterpret_cast<Floats*>(y)[i] = values[k];
  }
  // What no whole pack covers.
  const long long rest = packs * WIDTH + threadIdx.x;
  if (blockIdx.x == 0 && rest < size) y[rest] = gelu(x[rest]);
}

extern "C" int gelu_launcher(const float* x, float* y, long long size, cudaStream_t stream) {
  if (size == 0) return cudaSuccess;
  const bool wide = is_aligned(x) && is_aligned(y);
  const unsigned int blocks = ceil_div(size, THREADS * PACKS * (wide ? 4 : 1));
  if (wide) {
    gelu_kernel<4><<<blocks, THREADS, 0, stream>>>(x, y, size);
  } else {
    gelu_kernel<1><<<blocks, THREADS, 0, stream>>>(x, y, size);
  }
  return cudaGetLastError();
}
