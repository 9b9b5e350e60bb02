// relu(x times the transpose of weight + bias): bias and clamp are applied to sums that are still in registers.
#include "product.cuh"

struct BiasRelu {
  const float* bias;
  __device__ __forceinline__ float operator()(float sum, int column) const {
    const float value = sum + bias[column];
    return value < 0.0f ? 0.0f : value;  // NaN stays, as in torch
  }
};

extern "C" int matmul_bias_relu_launcher(const float* x, const float* weight, const float* bias, float* y, int rows,
                                         int out_features, int in_features, cudaStream_t stream) {
  return launch_product<true>(x, weight, y, 1, {rows, out_features, in_features}, BiasRelu{bias}, stream);
}
