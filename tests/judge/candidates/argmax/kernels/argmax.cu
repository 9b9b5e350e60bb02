// One warp a row. NaN wins over numbers, and of equals the first wins.
__device__ bool is_better(float a, int a_index, float b, int b_index) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a != b) return a > b;
  return a_index < b_index;
}

__global__ void argmax_kernel(const float* x, long long* y, int columns) {
  const float* row = x + blockIdx.x * columns;
  float best = -INFINITY;
  int index = columns;
  for (int c = threadIdx.x; c < columns; c += 32) {
    if (is_better(row[c], c, best, index)) {
      best = row[c];
      index = c;
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, offset);
    const int other_index = __shfl_xor_sync(0xffffffffu, index, offset);
    if (is_better(other, other_index, best, index)) {
      best = other;
      index = other_index;
    }
  }
  if (threadIdx.x == 0) y[blockIdx.x] = index;
}

extern "C" int argmax_launcher(const float* x, long long* y, int rows, int columns, cudaStream_t stream) {
  argmax_kernel<<<rows, 32, 0, stream>>>(x, y, columns);
  return cudaGetLastError();
}
