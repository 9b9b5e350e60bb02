// softmax(gelu(x + bias)) over each row: one block a row, the row in registers, so memory is read once and written once.
#include "row.cuh"

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    bias_gelu_softmax_kernel(const float* __restrict__ x, const float* __restrict__ bias, float* __restrict__ y, int columns) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  using Columns = Row<THREADS, ITEMS, WIDTH>;
  Columns row;
  row.load(x + start, columns, -INFINITY);

  float largest = -INFINITY;
#pragma unroll
  for (int item = 0; item < ITEMS; item += WIDTH) {
    const int column = Columns::column(item);
    if (column >= columns) continue;  // stays -infinity, whose exponential is 0
    const auto b = *reinterpret_cast<const Pack<float, WIDTH>*>(bias + column);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
      row.value[item + k] = gelu(row.value[item + k] + b.item[k]);
      largest = fmaxf(largest, row.value[item + k]);
    }
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

extern "C" int bias_gelu_softmax_launcher(const float* x, const float* bias, float* y, int rows, int columns,
                                          cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 4 == 0 && is_aligned(x) && is_aligned(bias) && is_aligned(y);
  return launch_rows<4>(columns, aligned, [&](auto threads, auto items, auto width) {
    bias_gelu_softmax_kernel<threads(), items(), width()><<<rows, threads(), 0, stream>>>(x, bias, y, columns);
  });
}
