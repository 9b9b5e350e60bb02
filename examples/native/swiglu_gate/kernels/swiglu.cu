// silu(gate) * up: two reads and one write of memory.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int PACKS = 2;  // of each operand; a thread's loads in flight before the first is used

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

template <int WIDTH>
__global__ void __launch_bounds__(THREADS)
    swiglu_kernel(const float* __restrict__ gate, const float* __restrict__ up, float* __restrict__ y, long long size) {
  using Floats = Pack<float, WIDTH>;
  const long long packs = size / WIDTH;
  const long long first = static_cast<long long>(blockIdx.x) * (THREADS * PACKS) + threadIdx.x;
  Floats gates[PACKS], ups[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const long long i = first + k * THREADS;
    if (i < packs) gates[k] = reinterpret_cast<const Floats*>(gate)[i];
    if (i < packs) ups[k] = reinterpret_cast<const Floats*>(up)[i];
  }
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const long long i = first + k * THREADS;
    if (i >= packs) continue;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) gates[k].item[j] = silu(gates[k].item[j]) * ups[k].item[j];
    reinterpret_cast<Floats*>(y)[i] = gates[k];
  }
  // What no whole pack covers.
  const long long rest = packs * WIDTH + threadIdx.x;
  if (blockIdx.x == 0 && rest < size) y[rest] = silu(gate[rest]) * up[rest];
}

extern "C" int swiglu_launcher(const float* gate, const float* up, float* y, long long size, cudaStream_t stream) {
  if (size == 0) return cudaSuccess;
  const bool wide = is_aligned(gate) && is_aligned(up) && is_aligned(y);
  const unsigned int blocks = ceil_div(size, THREADS * PACKS * (wide ? 4 : 1));
  if (wide) {
    swiglu_kernel<4><<<blocks, THREADS, 0, stream>>>(gate, up, y, size);
  } else {
    swiglu_kernel<1><<<blocks, THREADS, 0, stream>>>(gate, up, y, size);
  }
  return cudaGetLastError();
}
