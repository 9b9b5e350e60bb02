// Log-softmax over each row: one block a row, the row in registers, so memory is read once and written once.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    log_softmax_kernel(const float* __restrict__ x, float* __restrict__ y, int columns) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  Row<THREADS, ITEMS, WIDTH> row;
  row.load(x + start, columns, -INFINITY);

  float largest = -INFINITY;
#pragma unroll
  for (const float value : row.value) largest = fmaxf(largest, value);
  largest = reduce_block<THREADS>(largest, Largest());

  float sum = 0.0f;
#pragma unroll
  for (float& value : row.value) {
    value -= largest;
    sum += __expf(value);  // 0 past the end
  }
  const float shift = logf(reduce_block<THREADS>(sum, Sum()));
#pragma unroll
  for (float& value : row.value) value -= shift;
  row.store(y + start, columns);
}

extern "C" int log_softmax_launcher(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 4 == 0 && is_aligned(x) && is_aligned(y);
  return launch_rows<4>(columns, aligned, [&](auto threads, auto items, auto width) {
    log_softmax_kernel<threads(), items(), width()><<<rows, threads(), 0, stream>>>(x, y, columns);
  });
}
