// Mean of each column. Neighbouring threads take neighbouring columns; rows are split over blocks, whose partial sums a
// second kernel adds in a fixed order.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int LANES = 32;   // threads along the columns
constexpr int HEIGHT = 8;   // threads along the rows
constexpr int UNROLL = 8;   // rows in flight a thread

// Block (x, y): columns of tile x, rows from y * rows_a_block on. Writes partial[y][column].
template <int WIDTH>
__global__ void __launch_bounds__(LANES * HEIGHT)
    column_sums_kernel(const float* __restrict__ x, float* __restrict__ partial, int rows, int columns, int rows_a_block) {
  using Floats = Pack<float, WIDTH>;
  __shared__ Floats sums[HEIGHT][LANES];
  const int column = (blockIdx.x * LANES + threadIdx.x) * WIDTH;
  const int begin = blockIdx.y * rows_a_block;
  const int end = min(begin + rows_a_block, rows);

  Floats sum = {};
  if (column < columns) {
    for (int first = begin + threadIdx.y; first < end; first += HEIGHT * UNROLL) {
      Floats values[UNROLL];
#pragma unroll
      for (int k = 0; k < UNROLL; ++k) {
        const int row = first + k * HEIGHT;
        values[k] = row < end ? *reinterpret_cast<const Floats*>(x + static_cast<long long>(row) * columns + column) : Floats{};
      }
#pragma unroll
      for (int k = 0; k < UNROLL; ++k) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) sum.item[j] += values[k].item[j];
      }
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
#pragma unroll
    for (int other = 1; other < HEIGHT; ++other) {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) sum.item[j] += sums[other][threadIdx.x].item[j];
    }
    *reinterpret_cast<Floats*>(partial + static_cast<long long>(blockIdx.y) * columns + column) = sum;
  }
}

__global__ void column_mean_kernel(const float* __restrict__ partial, float* __restrict__ y, int parts, int rows, int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0.0f;
  for (int part = 0; part < parts; ++part) sum += partial[static_cast<long long>(part) * columns + column];
  y[column] = sum / rows;
}

// `partial` has `parts` rows of `columns` floats; rows are split into as many parts.
extern "C" int column_mean_launcher(const float* x, float* partial, float* y, int parts, int rows, int columns,
                                    cudaStream_t stream) {
  if (columns == 0) return cudaSuccess;
  const int rows_a_block = ceil_div(rows, parts);
  const bool wide = columns % 4 == 0 && is_aligned(x) && is_aligned(partial);
  const dim3 grid(ceil_div(columns, LANES * (wide ? 4 : 1)), parts), block(LANES, HEIGHT);
  if (wide) {
    column_sums_kernel<4><<<grid, block, 0, stream>>>(x, partial, rows, columns, rows_a_block);
  } else {
    column_sums_kernel<1><<<grid, block, 0, stream>>>(x, partial, rows, columns, rows_a_block);
  }
  column_mean_kernel<<<ceil_div(columns, 128), 128, 0, stream>>>(partial, y, parts, rows, columns);
  return cudaGetLastError();
}
