// softmax(x * scale) in float16: one block a row, the row in registers as float32, eight values a load.
#include <cuda_fp16.h>

#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    half_scale_softmax_kernel(const __half* __restrict__ x, __half* __restrict__ y, int columns, float scale) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  using Columns = Row<THREADS, ITEMS, WIDTH>;
  Columns row;
  row.load(x + start, columns, 0.0f);

  float largest = -INFINITY;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    row.value[item] = Columns::column(item) < columns ? row.value[item] * scale : -INFINITY;
    largest = fmaxf(largest, row.value[item]);
  }
  largest = reduce_block<THREADS>(largest, Largest());

  float sum = 0.0f;
#pragma unroll
  for (float& value : row.value) {
    value = __expf(value - largest);
    sum += value;
  }
  const float factor = 1.0f / reduce_block<THREADS>(sum, Sum());
#pragma unroll
  for (float& value : row.value) value *= factor;
  row.store(y + start, columns);
}

extern "C" int half_scale_softmax_launcher(const __half* x, __half* y, int rows, int columns, float scale,
                                           cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 8 == 0 && is_aligned(x) && is_aligned(y);
  return launch_rows<8>(columns, aligned, [&](auto threads, auto items, auto width) {
    half_scale_softmax_kernel<threads(), items(), width()><<<rows, threads(), 0, stream>>>(x, y, columns, scale);
  });
}
