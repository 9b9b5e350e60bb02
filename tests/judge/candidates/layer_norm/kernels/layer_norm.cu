// One warp a row.
__device__ float sum_warp(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__global__ void layer_norm_kernel(const float* x, const float* weight, const float* bias, float* y, int columns, float epsilon) {
  const float* row = x + blockIdx.x * columns;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < columns; c += 32) sum += row[c];
  const float mean = sum_warp(sum) / columns;
  float squares = 0.0f;
  for (int c = threadIdx.x; c < columns; c += 32) squares += (row[c] - mean) * (row[c] - mean);
  const float variance = sum_warp(squares) / columns;
  const float scale = rsqrtf(variance + epsilon);
  for (int c = threadIdx.x; c < columns; c += 32) {
    y[blockIdx.x * columns + c] = (row[c] - mean) * scale * weight[c] + bias[c];
  }
}

extern "C" int layer_norm_launcher(const float* x, const float* weight, const float* bias, float* y, int rows, int columns,
                                   float epsilon, cudaStream_t stream) {
  layer_norm_kernel<<<rows, 32, 0, stream>>>(x, weight, bias, y, columns, epsilon);
  return cudaGetLastError();
}
