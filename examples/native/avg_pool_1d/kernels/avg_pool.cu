// Average pooling along a sequence: a block copies the inputs of its outputs to shared memory, zeros past both ends, so
// that inputs are read from memory once although windows overlap.
#include <cuda_runtime.h>

constexpr int THREADS = 256;
constexpr int OUTPUTS = 4;  // a thread's outputs, THREADS apart
constexpr int TILE = THREADS * OUTPUTS;

// KERNEL and STRIDE: known sizes, which unroll the window; 0: as given at run time.
template <int KERNEL, int STRIDE>
__global__ void __launch_bounds__(THREADS)
    avg_pool_kernel(const float* __restrict__ x, float* __restrict__ y, int length, int out_length, int tiles,
                    int kernel_given, int stride_given, int padding) {
  extern __shared__ float inputs[];
  const int kernel = KERNEL ? KERNEL : kernel_given;
  const int stride = STRIDE ? STRIDE : stride_given;
  // The tiles of a row follow each other, so that blocks which run together read neighbouring memory.
  const long long row_index = blockIdx.x / tiles;
  const int first_output = blockIdx.x % tiles * TILE;
  const int first_input = first_output * stride - padding;
  const int needed = (TILE - 1) * stride + kernel;
  const float* row = x + row_index * length;
  for (int i = threadIdx.x; i < needed; i += THREADS) {
    const int column = first_input + i;
    inputs[i] = column >= 0 && column < length ? row[column] : 0.0f;
  }
  __syncthreads();

#pragma unroll
  for (int k = 0; k < OUTPUTS; ++k) {
    const int local = k * THREADS + threadIdx.x;
    if (first_output + local >= out_length) continue;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kernel; ++j) sum += inputs[local * stride + j];
    // The padding counts, as torch's default says.
    y[row_index * out_length + first_output + local] = sum / kernel;
  }
}

extern "C" int avg_pool_launcher(const float* x, float* y, int rows, int length, int out_length, int kernel, int stride,
                                 int padding, cudaStream_t stream) {
  if (rows == 0 || out_length == 0) return cudaSuccess;
  const int tiles = (out_length + TILE - 1) / TILE;
  const unsigned int grid = static_cast<unsigned int>(rows) * tiles;
  const int bytes = ((TILE - 1) * stride + kernel) * static_cast<int>(sizeof(float));
  if (bytes > 48 * 1024) return cudaErrorInvalidValue;  // a stride above 11 shares no inputs; this kernel is for overlap
  if (kernel == 8 && stride == 1) {
    avg_pool_kernel<8, 1><<<grid, THREADS, bytes, stream>>>(x, y, length, out_length, tiles, kernel, stride, padding);
  } else {
    avg_pool_kernel<0, 0><<<grid, THREADS, bytes, stream>>>(x, y, length, out_length, tiles, kernel, stride, padding);
  }
  return cudaGetLastError();
}
