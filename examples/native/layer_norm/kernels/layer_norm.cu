// Layer norm over the last dimension: one block a row, the row in registers, so memory is read once and written once.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    layer_norm_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                      float* __restrict__ y, int columns, float epsilon) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  using Columns = Row<THREADS, ITEMS, WIDTH>;
  Columns row;
  row.load(x + start, columns, 0.0f);

  float sum = 0.0f;
#pragma unroll
  for (const float value : row.value) sum += value;
  const float mean = reduce_block<THREADS>(sum, Sum()) / columns;

  float squares = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    row.value[item] -= mean;
    if (Columns::column(item) < columns) squares += row.value[item] * row.value[item];
  }
  const float scale = rsqrtf(reduce_block<THREADS>(squares, Sum()) / columns + epsilon);

  // Weight and bias are the same for all rows, so they come from the L2 cache.
#pragma unroll
  for (int item = 0; item < ITEMS; item += WIDTH) {
    const int column = Columns::column(item);
    if (column >= columns) continue;
    const auto w = *reinterpret_cast<const Pack<float, WIDTH>*>(weight + column);
    const auto b = *reinterpret_cast<const Pack<float, WIDTH>*>(bias + column);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) row.value[item + k] = row.value[item + k] * scale * w.item[k] + b.item[k];
  }
  row.store(y + start, columns);
}

extern "C" int layer_norm_launcher(const float* x, const float* weight, const float* bias, float* y, int rows, int columns,
                                   float epsilon, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 4 == 0 && is_aligned(x) && is_aligned(weight) && is_aligned(bias) && is_aligned(y);
  return launch_rows<4>(columns, aligned, [&](auto threads, auto items, auto width) {
    layer_norm_kernel<threads(), items(), width()>
        <<<rows, threads(), 0, stream>>>(x, weight, bias, y, columns, epsilon);
  });
}
