// a[i] (m x k) times b[i] (k x n) for every i of a batch.
#include "product.cuh"

extern "C" int batched_matmul_launcher(const float* a, const float* b, float* c, int batch, int m, int n, int k,
                                       cudaStream_t stream) {
  return launch_product<false>(a, b, c, batch, {m, n, k}, AsItIs(), stream);
}
