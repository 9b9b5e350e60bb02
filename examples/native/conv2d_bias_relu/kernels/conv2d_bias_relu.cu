// relu(convolution of images + bias): bias and clamp are applied to sums that are still in registers.
#include "convolution.cuh"

struct BiasRelu {
  const float* bias;
  __device__ __forceinline__ float operator()(float sum, int channel) const {
    const float value = sum + bias[channel];
    return value < 0.0f ? 0.0f : value;  // NaN stays, as in torch
  }
};

extern "C" int conv2d_bias_relu_launcher(const float* x, const float* weight, const float* bias, float* y, int images,
                                         int channels, int out_channels, int height, int width, int kernel, int padding,
                                         cudaStream_t stream) {
  const int out_height = height + 2 * padding - kernel + 1, out_width = width + 2 * padding - kernel + 1;
  const Convolution shape = {channels,  out_channels, 1,      height, width, 1,       out_height,
                             out_width, 1,            kernel, kernel, 0,     padding, padding};
  return launch_convolution(x, weight, y, images, shape, BiasRelu{bias}, stream);
}
