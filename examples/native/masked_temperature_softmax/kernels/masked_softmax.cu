// softmax(scores / temperature) under a mask: one block a row, the row in registers, so memory is read once and written
// once.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    masked_softmax_kernel(const float* __restrict__ scores, const bool* __restrict__ mask, float* __restrict__ y,
                          int columns, float temperature, float masked) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  using Columns = Row<THREADS, ITEMS, WIDTH>;
  Columns row, hidden;
  row.load(scores + start, columns, -INFINITY);
  hidden.load(mask + start, columns, 0.0f);

  float largest = -INFINITY;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    row.value[item] = hidden.value[item] != 0.0f ? masked : __fdividef(row.value[item], temperature);
    largest = fmaxf(largest, row.value[item]);
  }
  largest = reduce_block<THREADS>(largest, Largest());

  float sum = 0.0f;
#pragma unroll
  for (float& value : row.value) {
    value = __expf(value - largest);
    sum += value;
  }
  const float scale = 1.0f / reduce_block<THREADS>(sum, Sum());
#pragma unroll
  for (float& value : row.value) value *= scale;
  row.store(y + start, columns);
}

extern "C" int masked_softmax_launcher(const float* scores, const bool* mask, float* y, int rows, int columns,
                                       float temperature, float masked, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 4 == 0 && is_aligned(scores) && is_aligned(mask, 4) && is_aligned(y);
  return launch_rows<4>(columns, aligned, [&](auto threads, auto items, auto width) {
    masked_softmax_kernel<threads(), items(), width()>
        <<<rows, threads(), 0, stream>>>(scores, mask, y, columns, temperature, masked);
  });
}
