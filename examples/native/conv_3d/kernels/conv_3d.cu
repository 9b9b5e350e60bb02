// Convolution of volumes without padding, with bias.
#include "convolution.cuh"

struct Bias {
  const float* bias;
  __device__ __forceinline__ float operator()(float sum, int channel) const { return sum + bias[channel]; }
};

extern "C" int conv_3d_launcher(const float* x, const float* weight, const float* bias, float* y, int images, int channels,
                                int out_channels, int depth, int height, int width, int kernel, cudaStream_t stream) {
  const int less = kernel - 1;
  const Convolution shape = {channels,     out_channels,  depth,        height, width,  depth - less,
                             height - less, width - less, kernel,       kernel, kernel, 0,
                             0,            0};
  return launch_convolution(x, weight, y, images, shape, Bias{bias}, stream);
}
