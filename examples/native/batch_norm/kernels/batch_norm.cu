// Batch norm in evaluation mode: a scale and a shift per channel, worked out once a block, and one pass over memory.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int PACKS = 2;  // a thread's loads in flight before the first is used

// Blocks take the tiles of a plane, one channel of one image, one after the other, so that blocks which run together
// read neighbouring memory.
template <int WIDTH>
__global__ void __launch_bounds__(THREADS)
    batch_norm_kernel(const float* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ variance,
                      const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ y, int channels,
                      int positions, int tiles, float epsilon) {
  using Floats = Pack<float, WIDTH>;
  const int plane = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int channel = plane % channels;
  const float scale = rsqrtf(variance[channel] + epsilon) * weight[channel];
  const float shift = bias[channel] - mean[channel] * scale;

  const long long start = static_cast<long long>(plane) * positions;
  const auto* from = reinterpret_cast<const Floats*>(x + start);
  auto* to = reinterpret_cast<Floats*>(y + start);
  const int packs = positions / WIDTH;  // WIDTH divides positions
  const int first = tile * (THREADS * PACKS) + threadIdx.x;
  Floats values[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (first + k * THREADS < packs) values[k] = from[first + k * THREADS];
  }
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (first + k * THREADS >= packs) continue;
#pragma unroll
    for (float& value : values[k].item) value = value * scale + shift;
    to[first + k * THREADS] = values[k];
  }
}

extern "C" int batch_norm_launcher(const float* x, const float* mean, const float* variance, const float* weight,
                                   const float* bias, float* y, int images, int channels, int positions, float epsilon,
                                   cudaStream_t stream) {
  if (images == 0 || positions == 0) return cudaSuccess;
  const bool wide = positions % 4 == 0 && is_aligned(x) && is_aligned(y);
  const int tiles = ceil_div(positions, THREADS * PACKS * (wide ? 4 : 1));
  const unsigned int grid = images * channels * tiles;
  if (wide) {
    batch_norm_kernel<4>
        <<<grid, THREADS, 0, stream>>>(x, mean, variance, weight, bias, y, channels, positions, tiles, epsilon);
  } else {
    batch_norm_kernel<1>
        <<<grid, THREADS, 0, stream>>>(x, mean, variance, weight, bias, y, channels, positions, tiles, epsilon);
  }
  return cudaGetLastError();
}
