// Rows scaled to unit length: one block a row, the row in registers, so memory is read once and written once.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    l2_normalize_kernel(const float* __restrict__ x, float* __restrict__ y, int columns, float smallest) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  Row<THREADS, ITEMS, WIDTH> row;
  row.load(x + start, columns, 0.0f);

  float squares = 0.0f;
#pragma unroll
  for (const float value : row.value) squares += value * value;
  const float scale = 1.0f / fmaxf(sqrtf(reduce_block<THREADS>(squares, Sum())), smallest);
#pragma unroll
  for (float& value : row.value) value *= scale;
  row.store(y + start, columns);
}

extern "C" int l2_normalize_launcher(const float* x, float* y, int rows, int columns, float smallest, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 4 == 0 && is_aligned(x) && is_aligned(y);
  return launch_rows<4>(columns, aligned, [&](auto threads, auto items, auto width) {
    l2_normalize_kernel<threads(), items(), width()><<<rows, threads(), 0, stream>>>(x, y, columns, smallest);
  });
}
