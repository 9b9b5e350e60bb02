// Depthwise convolution with stride 1 and as many outputs as inputs. A thread walks down one column of a plane and keeps
// the window's rows in registers: an output costs one new row of the window, not the whole window.
#include <cuda_runtime.h>

constexpr int LANES = 32;   // threads along a row
constexpr int HEIGHT = 8;   // threads down a column
constexpr int ROWS = 16;    // outputs of a thread

template <int KERNEL>
__global__ void __launch_bounds__(LANES * HEIGHT)
    depthwise_conv_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                          float* __restrict__ y, int channels, int height, int width) {
  constexpr int PADDING = KERNEL / 2;
  // The tiles of a plane follow each other, so that blocks which run together read neighbouring memory.
  const int across = (width + LANES - 1) / LANES, down = (height + HEIGHT * ROWS - 1) / (HEIGHT * ROWS);
  const int tile = blockIdx.x % (across * down);
  const long long plane_index = blockIdx.x / (across * down);
  const int channel = plane_index % channels;
  const int column = tile % across * LANES + threadIdx.x;
  const int first = (tile / across * HEIGHT + threadIdx.y) * ROWS;
  if (column >= width || first >= height) return;
  const long long start = plane_index * height * width;
  const float* plane = x + start;

  float filter[KERNEL][KERNEL];
#pragma unroll
  for (int i = 0; i < KERNEL; ++i) {
#pragma unroll
    for (int j = 0; j < KERNEL; ++j) filter[i][j] = weight[(channel * KERNEL + i) * KERNEL + j];
  }
  const float shift = bias == nullptr ? 0.0f : bias[channel];

  // window[i]: input row first - PADDING + step + i, columns around this thread's.
  float window[KERNEL][KERNEL];
  const auto read = [&](int row, float(&into)[KERNEL]) {
#pragma unroll
    for (int j = 0; j < KERNEL; ++j) {
      const int c = column + j - PADDING;
      const bool inside = row >= 0 && row < height && c >= 0 && c < width;
      into[j] = inside ? plane[row * width + c] : 0.0f;
    }
  };
#pragma unroll
  for (int i = 1; i < KERNEL; ++i) read(first - PADDING + i - 1, window[i]);

#pragma unroll
  for (int step = 0; step < ROWS; ++step) {
#pragma unroll
    for (int i = 0; i + 1 < KERNEL; ++i) {
#pragma unroll
      for (int j = 0; j < KERNEL; ++j) window[i][j] = window[i + 1][j];
    }
    read(first + step - PADDING + KERNEL - 1, window[KERNEL - 1]);
    float sum = shift;
#pragma unroll
    for (int i = 0; i < KERNEL; ++i) {
#pragma unroll
      for (int j = 0; j < KERNEL; ++j) sum += window[i][j] * filter[i][j];
    }
    if (first + step < height) y[start + static_cast<long long>(first + step) * width + column] = sum;
  }
}

// Kernel sizes 1, 3, 5 and 7 with padding of half of them.
extern "C" int depthwise_conv_launcher(const float* x, const float* weight, const float* bias, float* y, int images,
                                       int channels, int height, int width, int kernel, cudaStream_t stream) {
  if (images == 0 || height == 0 || width == 0) return cudaSuccess;
  const int across = (width + LANES - 1) / LANES, down = (height + HEIGHT * ROWS - 1) / (HEIGHT * ROWS);
  const unsigned int grid = static_cast<unsigned int>(images) * channels * across * down;
  const dim3 block(LANES, HEIGHT);
  switch (kernel) {
    case 1:
      depthwise_conv_kernel<1><<<grid, block, 0, stream>>>(x, weight, bias, y, channels, height, width);
      break;
    case 3:
      depthwise_conv_kernel<3><<<grid, block, 0, stream>>>(x, weight, bias, y, channels, height, width);
      break;
    case 5:
      depthwise_conv_kernel<5><<<grid, block, 0, stream>>>(x, weight, bias, y, channels, height, width);
      break;
    case 7:
      depthwise_conv_kernel<7><<<grid, block, 0, stream>>>(x, weight, bias, y, channels, height, width);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}
