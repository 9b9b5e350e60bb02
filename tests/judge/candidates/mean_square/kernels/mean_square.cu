constexpr int THREADS = 64;

__device__ float sum_block(float value) {
  __shared__ float warps[THREADS / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  return warps[0] + warps[1];
}

__global__ void partial_kernel(const float* x, float* partial, int size) {
  float sum = 0.0f;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < size; i += gridDim.x * THREADS) sum += x[i] * x[i];
  sum = sum_block(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void total_kernel(const float* partial, float* y, int blocks, int size) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < blocks; i += THREADS) sum += partial[i];
  sum = sum_block(sum);
  if (threadIdx.x == 0) y[0] = sum / size;
}

extern "C" int mean_square_launcher(const float* x, float* partial, float* y, int blocks, int size, cudaStream_t stream) {
  partial_kernel<<<blocks, THREADS, 0, stream>>>(x, partial, size);
  total_kernel<<<1, THREADS, 0, stream>>>(partial, y, blocks, size);
  return cudaGetLastError();
}
