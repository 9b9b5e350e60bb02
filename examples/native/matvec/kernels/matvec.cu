// Matrix times vector. A block takes two rows at once: the vector then comes from the L2 cache once for both of them,
// which halves that traffic.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = 2;

__device__ __forceinline__ float sum_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

template <int WIDTH>
__global__ void __launch_bounds__(THREADS)
    matvec_kernel(const float* __restrict__ matrix, const float* __restrict__ vector, float* __restrict__ y, int rows,
                  int columns) {
  using Floats = Pack<float, WIDTH>;
  const int first_row = blockIdx.x * ROWS;
  const int packs = columns / WIDTH;  // WIDTH divides columns
  const Floats* row[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    // Past the last row the last one is read again, and not written.
    const int index = min(first_row + r, rows - 1);
    row[r] = reinterpret_cast<const Floats*>(matrix + static_cast<long long>(index) * columns);
  }

  float sum[ROWS] = {};
#pragma unroll 4
  for (int i = threadIdx.x; i < packs; i += THREADS) {
    const Floats v = reinterpret_cast<const Floats*>(vector)[i];
    Floats m[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) m[r] = row[r][i];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum[r] += m[r].item[k] * v.item[k];
    }
  }

  __shared__ float partial[ROWS][THREADS / 32];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    sum[r] = sum_warp(sum[r]);
    if (threadIdx.x % 32 == 0) partial[r][threadIdx.x / 32] = sum[r];
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < ROWS) {
    const float total = sum_warp(lane < THREADS / 32 ? partial[warp][lane] : 0.0f);
    if (lane == 0 && first_row + warp < rows) y[first_row + warp] = total;
  }
}

extern "C" int matvec_launcher(const float* matrix, const float* vector, float* y, int rows, int columns,
                               cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const unsigned int blocks = ceil_div(rows, ROWS);
  if (columns % 4 == 0 && is_aligned(matrix) && is_aligned(vector)) {
    matvec_kernel<4><<<blocks, THREADS, 0, stream>>>(matrix, vector, y, rows, columns);
  } else {
    matvec_kernel<1><<<blocks, THREADS, 0, stream>>>(matrix, vector, y, rows, columns);
  }
  return cudaGetLastError();
}
