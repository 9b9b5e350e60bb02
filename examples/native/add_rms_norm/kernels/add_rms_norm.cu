// total = x + residual in bfloat16, and the RMS norm of it: one block a row, the row in registers as float32.
#include <cuda_bf16.h>

#include "row.cuh"

using bf16 = __nv_bfloat16;

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    add_rms_norm_kernel(const bf16* __restrict__ x, const bf16* __restrict__ residual, const bf16* __restrict__ weight,
                        bf16* __restrict__ normed, bf16* __restrict__ total, int columns, float epsilon) {
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  using Columns = Row<THREADS, ITEMS, WIDTH>;
  Columns row, other;
  row.load(x + start, columns, 0.0f);
  other.load(residual + start, columns, 0.0f);

  // The norm is that of the rounded sum, as the next layer sees it.
  float squares = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    row.value[item] = __bfloat162float(__float2bfloat16_rn(row.value[item] + other.value[item]));
    squares += row.value[item] * row.value[item];
  }
  row.store(total + start, columns);
  const float scale = rsqrtf(reduce_block<THREADS>(squares, Sum()) / columns + epsilon);

#pragma unroll
  for (int item = 0; item < ITEMS; item += WIDTH) {
    const int column = Columns::column(item);
    if (column >= columns) continue;
    const auto w = *reinterpret_cast<const Pack<bf16, WIDTH>*>(weight + column);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) row.value[item + k] *= scale * __bfloat162float(w.item[k]);
  }
  row.store(normed + start, columns);
}

extern "C" int add_rms_norm_launcher(const bf16* x, const bf16* residual, const bf16* weight, bf16* normed, bf16* total,
                                     int rows, int columns, float epsilon, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool aligned = columns % 8 == 0 && is_aligned(x) && is_aligned(residual) && is_aligned(weight) &&
                       is_aligned(normed) && is_aligned(total);
  return launch_rows<8>(columns, aligned, [&](auto threads, auto items, auto width) {
    add_rms_norm_kernel<threads(), items(), width()>
        <<<rows, threads(), 0, stream>>>(x, residual, weight, normed, total, columns, epsilon);
  });
}
