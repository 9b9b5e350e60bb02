// Sum of each row: one block streams a row, several loads in flight a thread, then a tree over the block.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int UNROLL = 4;

__device__ __forceinline__ float sum_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

template <int WIDTH>
__global__ void __launch_bounds__(THREADS) row_sum_kernel(const float* __restrict__ x, float* __restrict__ y, int columns) {
  using Floats = Pack<float, WIDTH>;
  const auto* row = reinterpret_cast<const Floats*>(x + static_cast<long long>(blockIdx.x) * columns);
  const int packs = columns / WIDTH;  // WIDTH divides columns

  // One partial sum a load: short chains of additions, and less rounding error than one long one.
  float partial[UNROLL] = {};
  for (int first = threadIdx.x; first < packs; first += THREADS * UNROLL) {
    Floats values[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      const int i = first + k * THREADS;
      values[k] = i < packs ? row[i] : Floats{};
    }
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
#pragma unroll
      for (const float value : values[k].item) partial[k] += value;
    }
  }
  float sum = sum_warp((partial[0] + partial[1]) + (partial[2] + partial[3]));

  __shared__ float warps[THREADS / 32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = sum_warp(threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
  }
}

extern "C" int row_sum_launcher(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (columns % 4 == 0 && is_aligned(x)) {
    row_sum_kernel<4><<<rows, THREADS, 0, stream>>>(x, y, columns);
  } else {
    row_sum_kernel<1><<<rows, THREADS, 0, stream>>>(x, y, columns);
  }
  return cudaGetLastError();
}
