// Maximum of each row: one block streams a row, several loads in flight a thread, then a tree over the block.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int UNROLL = 4;

// As torch: NaN wins. fmaxf would drop it.
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }

__device__ __forceinline__ float max_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

template <int WIDTH>
__global__ void __launch_bounds__(THREADS) row_max_kernel(const float* __restrict__ x, float* __restrict__ y, int columns) {
  using Floats = Pack<float, WIDTH>;
  const auto* row = reinterpret_cast<const Floats*>(x + static_cast<long long>(blockIdx.x) * columns);
  const int packs = columns / WIDTH;  // WIDTH divides columns

  float largest = -INFINITY;
  for (int first = threadIdx.x; first < packs; first += THREADS * UNROLL) {
    Floats values[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      // Past the end a thread reads its first pack again, which changes no maximum.
      const int i = first + k * THREADS;
      values[k] = row[i < packs ? i : first];
    }
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
#pragma unroll
      for (const float value : values[k].item) largest = larger(largest, value);
    }
  }
  largest = max_warp(largest);

  __shared__ float warps[THREADS / 32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x < 32) {
    largest = max_warp(threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : -INFINITY);
    if (threadIdx.x == 0) y[blockIdx.x] = largest;
  }
}

extern "C" int row_max_launcher(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (columns % 4 == 0 && is_aligned(x)) {
    row_max_kernel<4><<<rows, THREADS, 0, stream>>>(x, y, columns);
  } else {
    row_max_kernel<1><<<rows, THREADS, 0, stream>>>(x, y, columns);
  }
  return cudaGetLastError();
}
