constexpr int THREADS = 128;

__global__ void silu_kernel(const float* __restrict__ x, float* __restrict__ y, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) {
    const float value = x[i];
    y[i] = value / (1.0f + expf(-value));
  }
}

extern "C" void silu_launcher(const float* x, float* y, int size, cudaStream_t stream) {
  const int blocks = (size + THREADS - 1) / THREADS;
  silu_kernel<<<blocks, THREADS, 0, stream>>>(x, y, size);
}
