// Hard swish: one read and one write of memory.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 128;
constexpr int PACKS = 2;  // a thread's loads in flight before the first is used

__device__ __forceinline__ float hard_swish(float x) { return x * fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f); }

template <int WIDTH>
__global__ void __launch_bounds__(THREADS) hard_swish_kernel(const float* __restrict__ x, float* __restrict__ y, long long size) {
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
    for (float& value : values[k].item) value = hard_swish(value);
    reinterpret_cast<Floats*>(y)[i] = values[k];
  }
  // What no whole pack covers.
  const long long rest = packs * WIDTH + threadIdx.x;
  if (blockIdx.x == 0 && rest < size) y[rest] = hard_swish(x[rest]);
}

extern "C" int hard_swish_launcher(const float* x, float* y, long long size, cudaStream_t stream) {
  if (size == 0) return cudaSuccess;
  const bool wide = is_aligned(x) && is_aligned(y);
  const unsigned int blocks = ceil_div(size, THREADS * PACKS * (wide ? 4 : 1));
  if (wide) {
    hard_swish_kernel<4><<<blocks, THREADS, 0, stream>>>(x, y, size);
  } else {
    hard_swish_kernel<1><<<blocks, THREADS, 0, stream>>>(x, y, size);
  }
  return cudaGetLastError();
}
