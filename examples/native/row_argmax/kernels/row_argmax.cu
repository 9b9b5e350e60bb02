// Index of the maximum of each row: a reduction over pairs of value and index in a total order, so that the result does
// not depend on the order in which threads meet.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int UNROLL = 4;

struct Found {
  float value;
  int index;
};

// As torch: NaN wins over numbers, and of equals the first wins.
__device__ __forceinline__ bool is_better(Found a, Found b) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan || b_nan) return a_nan && (!b_nan || a.index < b.index);
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }

__device__ __forceinline__ Found best_of_warp(Found best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Found other = {__shfl_xor_sync(0xffffffffu, best.value, offset), __shfl_xor_sync(0xffffffffu, best.index, offset)};
    if (is_better(other, best)) best = other;
  }
  return best;
}

template <int WIDTH>
__global__ void __launch_bounds__(THREADS)
    row_argmax_kernel(const float* __restrict__ x, long long* __restrict__ y, int columns) {
  using Floats = Pack<float, WIDTH>;
  const auto* row = reinterpret_cast<const Floats*>(x + static_cast<long long>(blockIdx.x) * columns);
  const int packs = columns / WIDTH;  // WIDTH divides columns

  // While the row streams by, only the pack with the largest value is kept; where in it that is, is worked out once.
  float largest = -INFINITY;
  int pack = threadIdx.x;
  Floats kept = pack < packs ? row[pack] : Floats{};
  for (int first = threadIdx.x; first < packs; first += THREADS * UNROLL) {
    Floats values[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      // Past the end a thread reads its first pack again, which is no better than itself.
      const int i = first + k * THREADS;
      values[k] = row[i < packs ? i : first];
    }
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      float here = values[k].item[0];
#pragma unroll
      for (int j = 1; j < WIDTH; ++j) here = larger(here, values[k].item[j]);
      if (here > largest || (here != here && largest == largest)) {
        largest = here;
        pack = first + k * THREADS;
        kept = values[k];
      }
    }
  }
  // Loses against every column, also against -infinity: its index comes last.
  const Found none = {-INFINITY, columns};
  Found best = none;
  if (pack < packs) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      const Found here = {kept.item[j], pack * WIDTH + j};
      if (is_better(here, best)) best = here;
    }
  }
  best = best_of_warp(best);

  __shared__ Found warps[THREADS / 32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = best_of_warp(threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : none);
    if (threadIdx.x == 0) y[blockIdx.x] = best.index;
  }
}

extern "C" int row_argmax_launcher(const float* x, long long* y, int rows, int columns, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (columns % 4 == 0 && is_aligned(x)) {
    row_argmax_kernel<4><<<rows, THREADS, 0, stream>>>(x, y, columns);
  } else {
    row_argmax_kernel<1><<<rows, THREADS, 0, stream>>>(x, y, columns);
  }
  return cudaGetLastError();
}
