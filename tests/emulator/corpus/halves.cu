// Short floats, tensor cores and asynchronous copies.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>
#include <mma.h>

__global__ void half_fma(const __half2 *a, const __half2 *b, __half2 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half2 v = __hfma2(a[i], b[i], __float2half2_rn(0.5f));
    y[i] = __hmax2(v, __halves2half2(__float2half(-1.0f), __float2half(0.0f)));
}
extern "C" int fma_pairs(const __half *a, const __half *b, __half *y, int n, cudaStream_t stream) {
    half_fma<<<(n / 2 + 127) / 128, 128, 0, stream>>>(reinterpret_cast<const __half2 *>(a), reinterpret_cast<const __half2 *>(b), reinterpret_cast<__half2 *>(y), n / 2);
    return cudaGetLastError();
}

__global__ void brain_gelu(const __nv_bfloat162 *x, __nv_bfloat162 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float2 v = __bfloat1622float2(x[i]);
    v.x = 0.5f * v.x * (1 + erff(v.x * 0.70710678f));
    v.y = 0.5f * v.y * (1 + erff(v.y * 0.70710678f));
    y[i] = __float22bfloat162_rn(v);
}
extern "C" int gelu_pairs(const __nv_bfloat16 *x, __nv_bfloat16 *y, int n, cudaStream_t stream) {
    brain_gelu<<<(n / 2 + 127) / 128, 128, 0, stream>>>(reinterpret_cast<const __nv_bfloat162 *>(x), reinterpret_cast<__nv_bfloat162 *>(y), n / 2);
    return cudaGetLastError();
}

__global__ void half_maths(const __half *x, __half *exps, __half *roots, __nv_bfloat16 *tanhs, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    exps[i] = hexp(x[i]);
    roots[i] = hrsqrt(__habs(x[i]));
    tanhs[i] = htanh(__float2bfloat16(__half2float(x[i])));
}
extern "C" int short_maths(const __half *x, __half *exps, __half *roots, __nv_bfloat16 *tanhs, int n, cudaStream_t stream) {
    half_maths<<<1, n, 0, stream>>>(x, exps, roots, tanhs, n);
    return cudaGetLastError();
}

__global__ void add_atomically(const __half2 *x, __half2 *h, __nv_bfloat162 *b, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    atomicAdd(h, x[i]);
    float2 v = __half22float2(x[i]);
    atomicAdd(b, __floats2bfloat162_rn(v.x, v.y));
}
extern "C" int atomic_pairs(const __half *x, __half *h, __nv_bfloat16 *b, int n, cudaStream_t stream) {
    add_atomically<<<1, n, 0, stream>>>(reinterpret_cast<const __half2 *>(x), reinterpret_cast<__half2 *>(h), reinterpret_cast<__nv_bfloat162 *>(b), n);
    return cudaGetLastError();
}

__global__ void through_fp8(const float *x, float *e4, float *e5, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    e4[i] = static_cast<float>(__nv_fp8_e4m3(x[i]));
    e5[i] = static_cast<float>(__nv_fp8_e5m2(x[i]));
}
extern "C" int round_to_fp8(const float *x, float *e4, float *e5, int n, cudaStream_t stream) {
    through_fp8<<<1, n, 0, stream>>>(x, e4, e5, n);
    return cudaGetLastError();
}

using namespace nvcuda;
__global__ void wmma_kernel(const __half *a, const __half *b, float *c, int n, int k) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    for (int t = 0; t < k; t += 16) {
        wmma::load_matrix_sync(fa, a + row * k + t, k);
        wmma::load_matrix_sync(fb, b + column * k + t, k);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    for (int e = 0; e < fc.num_elements; ++e) fc.x[e] = fmaxf(fc.x[e], 0.0f);
    wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}
extern "C" int wmma_relu(const __half *a, const __half *b, float *c, int m, int n, int k, cudaStream_t stream) {
    wmma_kernel<<<dim3(n / 16, m / 16), 32, 0, stream>>>(a, b, c, n, k);
    return cudaGetLastError();
}

// m16n8k16 of bf16 from shared memory through ldmatrix, B given by columns.
__global__ void mma_kernel(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int k) {
    __shared__ __align__(16) __nv_bfloat16 as[16][16], bs[8][16];
    int lane = threadIdx.x;
    float d[4] = {0, 0, 0, 0};
    for (int t = 0; t < k; t += 16) {
        for (int i = lane; i < 32; i += 32) __pipeline_memcpy_async(&as[i / 2][i % 2 * 8], a + (i / 2) * k + t + i % 2 * 8, 16);
        for (int i = lane; i < 16; i += 32) __pipeline_memcpy_async(&bs[i / 2][i % 2 * 8], b + (i / 2) * k + t + i % 2 * 8, 16);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncwarp();
        unsigned fa[4], fb[2];
        unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(&as[lane % 16][lane / 16 * 8]));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(from));
        from = static_cast<unsigned>(__cvta_generic_to_shared(&bs[lane % 8][lane / 8 % 2 * 8]));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(from));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
        __syncwarp();
    }
    for (int e = 0; e < 4; ++e) c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = d[e];
}
extern "C" int mma_bf16(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int k, cudaStream_t stream) {
    mma_kernel<<<1, 32, 0, stream>>>(a, b, c, k);
    return cudaGetLastError();
}

// A two-stage pipeline over tiles: the next one is under way while this one is summed.
__global__ void pipelined(const float *x, float *y, int tiles) {
    __shared__ __align__(16) float stage[2][256];
    float sum = 0;
    __pipeline_memcpy_async(&stage[0][threadIdx.x * 4], x + threadIdx.x * 4, 16);
    __pipeline_commit();
    for (int t = 0; t < tiles; ++t) {
        if (t + 1 < tiles) __pipeline_memcpy_async(&stage[(t + 1) % 2][threadIdx.x * 4], x + (t + 1) * 256 + threadIdx.x * 4, 16);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += stage[t % 2][255 - threadIdx.x] * static_cast<float>(t + 1);
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}
extern "C" int sum_tiles(const float *x, float *y, int tiles, cudaStream_t stream) {
    pipelined<<<1, 64, 0, stream>>>(x, y, tiles);
    return cudaGetLastError();
}
