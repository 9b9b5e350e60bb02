// Max pooling: one thread an output, a block of neighbouring outputs of one plane. Windows overlap within a block, so
// inputs come from memory once and from the L1 cache after that.
#include <cuda_runtime.h>

constexpr int THREADS = 256;

// KERNEL and STRIDE: known sizes, which unroll the window; 0: as given at run time.
template <int KERNEL, int STRIDE>
__global__ void __launch_bounds__(THREADS)
    max_pool_kernel(const float* __restrict__ x, float* __restrict__ y, int height, int width, int out_height,
                    int out_width, int tiles, int kernel_given, int stride_given, int padding) {
  const int kernel = KERNEL ? KERNEL : kernel_given;
  const int stride = STRIDE ? STRIDE : stride_given;
  // The tiles of a plane follow each other, so that blocks which run together read neighbouring memory.
  const long long plane_index = blockIdx.x / tiles;
  const int index = blockIdx.x % tiles * THREADS + threadIdx.x;
  if (index >= out_height * out_width) return;
  const float* plane = x + plane_index * height * width;
  const int top = index / out_width * stride - padding;
  const int left = index % out_width * stride - padding;

  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kernel; ++i) {
#pragma unroll
    for (int j = 0; j < kernel; ++j) {
      const int row = top + i, column = left + j;
      if (row < 0 || row >= height || column < 0 || column >= width) continue;
      const float value = plane[row * width + column];
      if (value > largest || value != value) largest = value;  // NaN wins, as in torch
    }
  }
  y[plane_index * out_height * out_width + index] = largest;
}

extern "C" int max_pool_launcher(const float* x, float* y, int planes, int height, int width, int out_height, int out_width,
                                 int kernel, int stride, int padding, cudaStream_t stream) {
  if (planes == 0 || out_height * out_width == 0) return cudaSuccess;
  const int tiles = (out_height * out_width + THREADS - 1) / THREADS;
  const unsigned int grid = static_cast<unsigned int>(planes) * tiles;
  if (kernel == 3 && stride == 2) {
    max_pool_kernel<3, 2>
        <<<grid, THREADS, 0, stream>>>(x, y, height, width, out_height, out_width, tiles, kernel, stride, padding);
  } else {
    max_pool_kernel<0, 0>
        <<<grid, THREADS, 0, stream>>>(x, y, height, width, out_height, out_width, tiles, kernel, stride, padding);
  }
  return cudaGetLastError();
}
