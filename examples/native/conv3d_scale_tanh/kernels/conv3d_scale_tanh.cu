// tanh((convolution of volumes + bias) * scale), without padding: the rest is applied to sums that are still in registers.
#include "convolution.cuh"

struct ScaleTanh {
  const float* bias;
  const float* scale;
  __device__ __forceinline__ float operator()(float sum, int channel) const {
    return tanhf((sum + bias[channel]) * scale[channel]);
  }
};

extern "C" int conv3d_scale_tanh_launcher(const float* x, const float* weight, const float* bias, const float* scale, float* y,
                                          int images, int channels, int out_channels, int depth, int height, int width,
                                          int kernel, cudaStream_t stream) {
  const int less = kernel - 1;
  const Convolution shape = {channels,     out_channels,  depth,        height, width,  depth - less,
                             height - less, width - less, kernel,       kernel, kernel, 0,
                             0,            0};
  return launch_convolution(x, weight, y, images, shape, ScaleTanh{bias, scale}, stream);
}
