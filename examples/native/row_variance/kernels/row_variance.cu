// Variance of each row: the row stays in registers, so the mean is known before deviations are squared, and no
// cancellation between large sums spoils the result.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    row_variance_kernel(const float* __restrict__ x, float* __restrict__ y, int columns) {
  Row<THREADS, ITEMS, WIDTH> row;
  row.load(x + static_cast<long long>(blockIdx.x) * columns, columns, 0.0f);

  float sum = 0.0f;
#pragma unroll
  for (const float value : row.value) sum += value;
  const float mean = reduce_block<THREADS>(sum, Sum()) / columns;

  float squares = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const float deviation = row.column(item) < columns ? row.value[item] - mean : 0.0f;
    squares += deviation * deviation;
  }
  squares = reduce_block<THREADS>(squares, Sum());
  if (threadIdx.x == 0) y[blockIdx.x] = squares / (columns - 1);  // unbiased; NaN for a single column, as in torch
}

extern "C" int row_variance_launcher(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  return launch_rows<4>(columns, columns % 4 == 0 && is_aligned(x), [&](auto threads, auto items, auto width) {
    row_variance_kernel<threads(), items(), width()><<<rows, threads(), 0, stream>>>(x, y, columns);
  });
}
