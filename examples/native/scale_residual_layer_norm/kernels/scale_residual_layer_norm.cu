// layer_norm(x * scale + residual): one block a row, the sum in registers, so memory is read once and written once.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    scale_residual_layer_norm_kernel(const float* __restrict__ x, const float* __restrict__ residual,
                                     const float* __restrict__ scale, const float* __restrict__ weight,
                                     const float* __restrict__ bias, float* __restrict__ y, int columns, float epsilon) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  using Columns = Row<THREADS, ITEMS, WIDTH>;
  using Floats = Pack<float, WIDTH>;
  Columns row, other;
  row.load(x + start, columns, 0.0f);
  other.load(residual + start, columns, 0.0f);

  float sum = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; item += WIDTH) {
    const int column = Columns::column(item);
    if (column >= columns) continue;
    const auto s = *reinterpret_cast<const Floats*>(scale + column);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
      row.value[item + k] = row.value[item + k] * s.item[k] + other.value[item + k];
      sum += row.value[item + k];
    }
  }
  const float mean = reduce_block<THREADS>(sum, Sum()) / columns;

  float squares = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    row.value[item] -= mean;
    if (Columns::column(item) < columns) squares += row.value[item] * row.value[item];
  }
  const float factor = rsqrtf(reduce_block<THREADS>(squares, Sum()) / columns + epsilon);

#pragma unroll
  for (int item = 0; item < ITEMS; item += WIDTH) {
    const int column = Columns::column(item);
    if (column >= columns) continue;
    const auto w = *reinterpret_cast<const Floats*>(weight + column);
    const auto b = *reinterpret_cast<const Floats*>(bias + column);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) row.value[item + k] = row.value[item + k] * factor * w.item[k] + b.item[k];
  }
  row.store(y + start, columns);
}

extern "C" int scale_residual_layer_norm_launcher(const float* x, const float* residual, const float* scale,
                                                  const float* weight, const float* bias, float* y, int rows, int columns,
                                                  float epsilon, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 4 == 0 && is_aligned(x) && is_aligned(residual) && is_aligned(scale) &&
                       is_aligned(weight) && is_aligned(bias) && is_aligned(y);
  return launch_rows<4>(columns, aligned, [&](auto threads, auto items, auto width) {
    scale_residual_layer_norm_kernel<threads(), items(), width()>
        <<<rows, threads(), 0, stream>>>(x, residual, scale, weight, bias, y, columns, epsilon);
  });
}
