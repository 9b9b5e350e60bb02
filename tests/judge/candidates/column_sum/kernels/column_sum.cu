constexpr int ROWS_A_BLOCK = 16;

__global__ void clear_kernel(float* y, int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column < columns) y[column] = 0.0f;
}

// A thread an element.
__global__ void column_sum_kernel(const float* x, float* y, int rows, int columns) {
  const int column = threadIdx.x;
  const int row = blockIdx.x * ROWS_A_BLOCK + threadIdx.y;
  if (row < rows && column < columns) atomicAdd(&y[column], x[row * columns + column]);
}

extern "C" int column_sum_launcher(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  clear_kernel<<<(columns + 31) / 32, 32, 0, stream>>>(y, columns);
  const int blocks = (rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK;
  column_sum_kernel<<<blocks, dim3(columns, ROWS_A_BLOCK), 0, stream>>>(x, y, rows, columns);
  return cudaGetLastError();
}
