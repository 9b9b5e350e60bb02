// Max pooling: a thread takes outputs below each other, and finds the maximum of an input row's part of the window once for
// all of them that it belongs to. Windows overlap within a block, so inputs come from memory once and from the L1 cache
// after that.
#include <cuda_runtime.h>

constexpr int THREADS = 256;

// As torch: NaN wins.
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }

// KERNEL and STRIDE: known sizes, which unroll the window; 0: as given at run time. OUTPUTS: of a thread, below each other.
template <int KERNEL, int STRIDE, int OUTPUTS>
__global__ void __launch_bounds__(THREADS)
    max_pool_kernel(const float* __restrict__ x, float* __restrict__ y, int height, int width, int out_height,
                    int out_width, int tiles, int kernel_given, int stride_given, int padding) {
  const int kernel = KERNEL ? KERNEL : kernel_given;
  const int stride = STRIDE ? STRIDE : stride_given;
  // The tiles of a plane follow each other, so that blocks which run together read neighbouring memory.
  const long long plane_index = blockIdx.x / tiles;
  const int index = blockIdx.x % tiles * THREADS + threadIdx.x;
  const int out_column = index % out_width, out_row = index / out_width * OUTPUTS;
  if (out_row >= out_height) return;
  const float* plane = x + plane_index * height * width;
  const int top = out_row * stride - padding, left = out_column * stride - padding;

  float largest[OUTPUTS];
#pragma unroll
  for (float& value : largest) value = -INFINITY;
#pragma unroll
  for (int i = 0; i < (OUTPUTS - 1) * stride + kernel; ++i) {
    const int row = top + i;
    if (row < 0 || row >= height) continue;
    float across = -INFINITY;
#pragma unroll
    for (int j = 0; j < kernel; ++j) {
      const int column = left + j;
      if (column >= 0 && column < width) across = larger(across, plane[row * width + column]);
    }
#pragma unroll
    for (int k = 0; k < OUTPUTS; ++k) {
      if (i >= k * stride && i < k * stride + kernel) largest[k] = larger(largest[k], across);
    }
  }
#pragma unroll
  for (int k = 0; k < OUTPUTS; ++k) {
    if (out_row + k < out_height) {
      y[(plane_index * out_height + out_row + k) * out_width + out_column] = largest[k];
    }
  }
}

template <int KERNEL, int STRIDE, int OUTPUTS>
static int launch(const float* x, float* y, int planes, int height, int width, int out_height, int out_width, int kernel,
                  int stride, int padding, cudaStream_t stream) {
  const int tiles = ((out_height + OUTPUTS - 1) / OUTPUTS * out_width + THREADS - 1) / THREADS;
  const unsigned int blocks = static_cast<unsigned int>(planes) * tiles;
  max_pool_kernel<KERNEL, STRIDE, OUTPUTS>
      <<<blocks, THREADS, 0, stream>>>(x, y, height, width, out_height, out_width, tiles, kernel, stride, padding);
  return cudaGetLastError();
}

extern "C" int max_pool_launcher(const float* x, float* y, int planes, int height, int width, int out_height, int out_width,
                                 int kernel, int stride, int padding, cudaStream_t stream) {
  if (planes == 0 || out_height * out_width == 0) return cudaSuccess;
  if (kernel == 3 && stride == 2) {
    return launch<3, 2, 4>(x, y, planes, height, width, out_height, out_width, kernel, stride, padding, stream);
  }
  return launch<0, 0, 1>(x, y, planes, height, width, out_height, out_width, kernel, stride, padding, stream);
}
