constexpr int THREADS = 128;

// One block a row; trees over shared memory.
__global__ void softmax_kernel(const float* x, float* y, int columns) {
  __shared__ float shared[THREADS];
  const float* row = x + blockIdx.x * columns;
  float largest = -INFINITY;
  for (int c = threadIdx.x; c < columns; c += THREADS) largest = fmaxf(largest, row[c]);
  shared[threadIdx.x] = largest;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  largest = shared[0];
  __syncthreads();  // all have read the maximum
  float sum = 0.0f;
  for (int c = threadIdx.x; c < columns; c += THREADS) sum += expf(row[c] - largest);
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  sum = shared[0];
  for (int c = threadIdx.x; c < columns; c += THREADS) y[blockIdx.x * columns + c] = expf(row[c] - largest) / sum;
}

extern "C" int softmax_launcher(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  softmax_kernel<<<rows, THREADS, 0, stream>>>(x, y, columns);
  return cudaGetLastError();
}
