// Instance norm: one block a channel of an image, its positions in registers, so memory is read once and written once.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    instance_norm_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                         float* __restrict__ y, int channels, int positions, float epsilon) {
  const long long start = static_cast<long long>(blockIdx.x) * positions;
  using Positions = Row<THREADS, ITEMS, WIDTH>;
  Positions plane;
  plane.load(x + start, positions, 0.0f);

  float sum = 0.0f;
#pragma unroll
  for (const float value : plane.value) sum += value;
  const float mean = reduce_block<THREADS>(sum, Sum()) / positions;

  float squares = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    plane.value[item] -= mean;
    if (Positions::column(item) < positions) squares += plane.value[item] * plane.value[item];
  }
  const float deviation = rsqrtf(reduce_block<THREADS>(squares, Sum()) / positions + epsilon);

  const int channel = blockIdx.x % channels;
  const float scale = deviation * weight[channel], shift = bias[channel];
#pragma unroll
  for (float& value : plane.value) value = value * scale + shift;
  plane.store(y + start, positions);
}

extern "C" int instance_norm_launcher(const float* x, const float* weight, const float* bias, float* y, int images,
                                      int channels, int positions, float epsilon, cudaStream_t stream) {
  if (images == 0) return cudaSuccess;
  const bool aligned = positions % 4 == 0 && is_aligned(x) && is_aligned(y);
  return launch_rows<4>(positions, aligned, [&](auto threads, auto items, auto width) {
    instance_norm_kernel<threads(), items(), width()>
        <<<images * channels, threads(), 0, stream>>>(x, weight, bias, y, channels, positions, epsilon);
  });
}
