// Cross-entropy of logits and class indices, averaged over rows. One block a row gives the row's loss; a second kernel
// adds the losses in a fixed order, so that results are the same from run to run.
#include "row.cuh"

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    row_loss_kernel(const float* __restrict__ logits, const long long* __restrict__ target, float* __restrict__ losses,
                    int classes) {
  const float* logit = logits + static_cast<long long>(blockIdx.x) * classes;
  Row<THREADS, ITEMS, WIDTH> row;
  row.load(logit, classes, -INFINITY);

  float largest = -INFINITY;
#pragma unroll
  for (const float value : row.value) largest = fmaxf(largest, value);
  largest = reduce_block<THREADS>(largest, Largest());

  float sum = 0.0f;
#pragma unroll
  for (const float value : row.value) sum += __expf(value - largest);  // 0 past the end
  sum = reduce_block<THREADS>(sum, Sum());

  if (threadIdx.x == 0) {
    const long long wanted = target[blockIdx.x];
    const bool known = wanted >= 0 && wanted < classes;  // torch raises here; a kernel can only give NaN
    losses[blockIdx.x] = known ? logf(sum) + largest - logit[wanted] : NAN;
  }
}

constexpr int MEAN_THREADS = 1024;

__global__ void __launch_bounds__(MEAN_THREADS) mean_kernel(const float* __restrict__ losses, float* __restrict__ y, int rows) {
  float sum = 0.0f;
  for (int row = threadIdx.x; row < rows; row += MEAN_THREADS) sum += losses[row];
  sum = reduce_block<MEAN_THREADS>(sum, Sum());
  if (threadIdx.x == 0) *y = sum / rows;
}

extern "C" int cross_entropy_launcher(const float* logits, const long long* target, float* losses, float* y, int rows,
                                      int classes, cudaStream_t stream) {
  if (rows > 0) {
    const bool aligned = classes % 4 == 0 && is_aligned(logits);
    const int status = launch_rows<4>(classes, aligned, [&](auto threads, auto items, auto width) {
      row_loss_kernel<threads(), items(), width()><<<rows, threads(), 0, stream>>>(logits, target, losses, classes);
    });
    if (status != cudaSuccess) return status;
  }
  mean_kernel<<<1, MEAN_THREADS, 0, stream>>>(losses, y, rows);
  return cudaGetLastError();
}
