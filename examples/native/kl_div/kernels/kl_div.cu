// Kullback-Leibler divergence of log-probabilities and probabilities, per row of the batch: blocks write partial sums, a
// second kernel adds them in a fixed order, so that results are the same from run to run. No atomics, and no scratch that
// must be cleared.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int UNROLL = 4;

__device__ __forceinline__ float sum_block(float value) {
  __shared__ float warps[THREADS / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0f;
#pragma unroll
  for (const float part : warps) value += part;
  return value;
}

__device__ __forceinline__ float term(float log_prediction, float target) {
  // 0 log 0 counts as 0, as in torch.
  return target > 0.0f ? target * (logf(target) - log_prediction) : target == 0.0f ? 0.0f : NAN;
}

template <int WIDTH>
__global__ void __launch_bounds__(THREADS)
    partial_sums_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ partial,
                        long long size) {
  using Floats = Pack<float, WIDTH>;
  const auto* first = reinterpret_cast<const Floats*>(a);
  const auto* second = reinterpret_cast<const Floats*>(b);
  const long long packs = size / WIDTH;
  const long long stride = static_cast<long long>(gridDim.x) * (THREADS * UNROLL);

  // One sum a load: short chains of additions, and less rounding error than one long one.
  float sum[UNROLL] = {};
  for (long long start = static_cast<long long>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x; start < packs;
       start += stride) {
    Floats x[UNROLL], y[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      const long long i = start + k * THREADS;
      if (i < packs) {
        x[k] = first[i];
        y[k] = second[i];
      }
    }
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      if (start + k * THREADS >= packs) continue;
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) sum[k] += term(x[k].item[j], y[k].item[j]);
    }
  }
  // What no whole pack covers.
  const long long rest = packs * WIDTH + threadIdx.x;
  if (blockIdx.x == 0 && rest < size) sum[0] += term(a[rest], b[rest]);

  const float total = sum_block((sum[0] + sum[1]) + (sum[2] + sum[3]));
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(THREADS) total_kernel(const float* __restrict__ partial, float* __restrict__ y, int blocks,
                                                        float divisor) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < blocks; i += THREADS) sum += partial[i];
  sum = sum_block(sum);
  if (threadIdx.x == 0) *y = sum / divisor;
}

// `partial` holds one float a block; its size decides how many blocks share the work.
extern "C" int kl_div_launcher(const float* log_prediction, const float* target, float* partial, float* y, int blocks,
                               long long size, int rows, cudaStream_t stream) {
  if (is_aligned(log_prediction) && is_aligned(target)) {
    partial_sums_kernel<4><<<blocks, THREADS, 0, stream>>>(log_prediction, target, partial, size);
  } else {
    partial_sums_kernel<1><<<blocks, THREADS, 0, stream>>>(log_prediction, target, partial, size);
  }
  total_kernel<<<1, THREADS, 0, stream>>>(partial, y, blocks, static_cast<float>(rows));
  return cudaGetLastError();
}
