// Convolution along a sequence, with bias.
#include "convolution.cuh"

struct Bias {
  const float* bias;
  __device__ __forceinline__ float operator()(float sum, int channel) const { return sum + bias[channel]; }
};

extern "C" int conv_1d_launcher(const float* x, const float* weight, const float* bias, float* y, int sequences, int channels,
                                int out_channels, int length, int kernel, int padding, cudaStream_t stream) {
  const int out_length = length + 2 * padding - kernel + 1;
  const Convolution shape = {channels, out_channels, 1, 1, length, 1, 1, out_length, 1, 1, kernel, 0, 0, padding};
  return launch_convolution(x, weight, y, sequences, shape, Bias{bias}, stream);
}
