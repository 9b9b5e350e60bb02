// Running sum along each row: one block a row. A tile of the row is loaded whole, scanned in registers, warps and the block,
// and written; the next tile goes on from its total. Memory is read once and written once.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int PACKS = 8;  // of four neighbouring columns; a tile has 16384 columns
constexpr int TOTALS = PACKS * WARPS;
constexpr int TOTALS_A_LANE = TOTALS / 32;

__device__ __forceinline__ float scan_warp(float value) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float before = __shfl_up_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 >= offset) value += before;
  }
  return value;
}

// What comes before this lane; a difference of sums would lose it behind a large value.
__device__ __forceinline__ float exclusive_of(float inclusive) {
  const float before = __shfl_up_sync(0xffffffffu, inclusive, 1);
  return threadIdx.x % 32 == 0 ? 0.0f : before;
}

// ALIGNED: rows start at multiples of 16 bytes and have whole packs.
template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 2) cumsum_kernel(const float* __restrict__ x, float* __restrict__ y, int columns) {
  __shared__ float totals[TOTALS + 1];  // of warp w in pack p at p * WARPS + w, then what comes before; last: the tile's
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  float carry = 0.0f;
  for (int tile = 0; tile < columns; tile += THREADS * PACKS * 4) {
    float value[PACKS][4], before[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      const int column = tile + (p * THREADS + threadIdx.x) * 4;
      if constexpr (ALIGNED) {
        const auto pack = column < columns ? *reinterpret_cast<const Pack<float, 4>*>(x + start + column) : Pack<float, 4>{};
#pragma unroll
        for (int k = 0; k < 4; ++k) value[p][k] = pack.item[k];
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) value[p][k] = column + k < columns ? x[start + column + k] : 0.0f;
      }
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
      for (int k = 1; k < 4; ++k) value[p][k] += value[p][k - 1];
      const float inclusive = scan_warp(value[p][3]);
      before[p] = exclusive_of(inclusive);
      if (lane == 31) totals[p * WARPS + warp] = inclusive;
    }
    __syncthreads();
    if (warp == 0) {
      float mine[TOTALS_A_LANE], sum = 0.0f;
#pragma unroll
      for (int k = 0; k < TOTALS_A_LANE; ++k) {
        mine[k] = sum;
        sum += totals[lane * TOTALS_A_LANE + k];
      }
      const float inclusive = scan_warp(sum);
      const float exclusive = exclusive_of(inclusive);
#pragma unroll
      for (int k = 0; k < TOTALS_A_LANE; ++k) totals[lane * TOTALS_A_LANE + k] = exclusive + mine[k];
      if (lane == 31) totals[TOTALS] = inclusive;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      const int column = tile + (p * THREADS + threadIdx.x) * 4;
      const float base = carry + totals[p * WARPS + warp] + before[p];
      if constexpr (ALIGNED) {
        if (column < columns) {
          Pack<float, 4> pack;
#pragma unroll
          for (int k = 0; k < 4; ++k) pack.item[k] = base + value[p][k];
          *reinterpret_cast<Pack<float, 4>*>(y + start + column) = pack;
        }
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (column + k < columns) y[start + column + k] = base + value[p][k];
        }
      }
    }
    carry += totals[TOTALS];
    __syncthreads();  // the next tile overwrites the totals
  }
}

extern "C" int cumsum_launcher(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (columns % 4 == 0 && is_aligned(x) && is_aligned(y)) {
    cumsum_kernel<true><<<rows, THREADS, 0, stream>>>(x, y, columns);
  } else {
    cumsum_kernel<false><<<rows, THREADS, 0, stream>>>(x, y, columns);
  }
  return cudaGetLastError();
}
