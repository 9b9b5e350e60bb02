// Per row: sum((scores - logsumexp(scores) - target)^2). One block a row, both rows in registers, so memory is read once.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 512 / THREADS)
    logsumexp_shift_kernel(const float* __restrict__ scores, const float* __restrict__ target, float* __restrict__ y,
                           int columns) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  using Columns = Row<THREADS, ITEMS, WIDTH>;
  Columns row, other;
  row.load(scores + start, columns, -INFINITY);
  other.load(target + start, columns, 0.0f);

  float largest = -INFINITY;
#pragma unroll
  for (const float value : row.value) largest = fmaxf(largest, value);
  largest = reduce_block<THREADS>(largest, Largest());

  float sum = 0.0f;
#pragma unroll
  for (const float value : row.value) sum += __expf(value - largest);  // 0 past the end
  const float shift = largest + logf(reduce_block<THREADS>(sum, Sum()));

  float squares = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const float error = Columns::column(item) < columns ? row.value[item] - shift - other.value[item] : 0.0f;
    squares += error * error;
  }
  squares = reduce_block<THREADS>(squares, Sum());
  if (threadIdx.x == 0) y[blockIdx.x] = squares;
}

extern "C" int logsumexp_shift_launcher(const float* scores, const float* target, float* y, int rows, int columns,
                                        cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 4 == 0 && is_aligned(scores) && is_aligned(target);
  return launch_rows<4>(columns, aligned, [&](auto threads, auto items, auto width) {
    logsumexp_shift_kernel<threads(), items(), width()><<<rows, threads(), 0, stream>>>(scores, target, y, columns);
  });
}
