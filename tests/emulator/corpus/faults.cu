// Kernels that are wrong on purpose, one fault each. Tests name the lines by the comment at their end.
#include <cassert>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#define LAUNCH(...) \
    __VA_ARGS__;    \
    return cudaGetLastError();

__global__ void past(const float *x, float *y, int first, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[i + first];  // LINE past
}
extern "C" int read_past(const float *x, float *y, int first, int n, cudaStream_t s) { LAUNCH((past<<<1, 64, 0, s>>>(x, y, first, n))) }

__global__ void store(float *y, int at) {
    if (threadIdx.x == 37) y[blockIdx.x * 4 + at] = 1.0f;  // LINE store
}
extern "C" int write_at(float *y, int at, cudaStream_t s) { LAUNCH((store<<<dim3(1, 1, 1), dim3(8, 8), 0, s>>>(y, at))) }
__global__ void store2(float *y, int at) {
    if (threadIdx.x == 5 && threadIdx.y == 3 && blockIdx.x == 2) y[at] = 1.0f;  // LINE store2
}
extern "C" int write_in_block(float *y, int at, cudaStream_t s) { LAUNCH((store2<<<dim3(3, 1, 1), dim3(8, 8), 0, s>>>(y, at))) }
extern "C" int write_const(const float *y, cudaStream_t s) { LAUNCH((store2<<<3, dim3(8, 8), 0, s>>>(const_cast<float *>(y), 0))) }
extern "C" int write_null(cudaStream_t s) { LAUNCH((store2<<<3, dim3(8, 8), 0, s>>>(nullptr, 3))) }

__global__ void stage(float *y, int at) {
    __shared__ float buffer[32];
    buffer[threadIdx.x] = 1.0f;
    __syncthreads();
    y[threadIdx.x] = buffer[threadIdx.x + at];  // LINE stage
}
extern "C" int read_shared(float *y, int at, cudaStream_t s) { LAUNCH((stage<<<1, 32, 0, s>>>(y, at))) }

__global__ void local(float *y, int at) {
    float own[6];
    for (int k = 0; k < 6; ++k) own[k] = y[k];
    own[at] += 1.0f;  // LINE local
    for (int k = 0; k < 6; ++k) y[(k * at) % 6] = own[(k + at) % 6];
}
extern "C" int index_local(float *y, int at, cudaStream_t s) { LAUNCH((local<<<1, 1, 0, s>>>(y, at))) }

__global__ void wide(const float *x, float *y) {
    float4 v = *reinterpret_cast<const float4 *>(x + 1 + threadIdx.x * 4);  // LINE wide
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
extern "C" int read_misaligned(const float *x, float *y, cudaStream_t s) { LAUNCH((wide<<<1, 2, 0, s>>>(x, y))) }

__global__ void spin(volatile int *flag) {
    while (*flag == 0) {  // LINE spin
    }
}
extern "C" int wait_for_ever(int *flag, cudaStream_t s) { LAUNCH((spin<<<1, 32, 0, s>>>(flag))) }

template <bool Wait> __global__ void mirror(const float *x, float *y) {
    __shared__ float buffer[128];
    buffer[threadIdx.x] = x[threadIdx.x];
    if (Wait) __syncthreads();
    y[threadIdx.x] = buffer[127 - threadIdx.x];
}
extern "C" int reverse(const float *x, float *y, bool wait, cudaStream_t s) {
    if (wait) mirror<true><<<1, 128, 0, s>>>(x, y);
    else mirror<false><<<1, 128, 0, s>>>(x, y);
    return cudaGetLastError();
}

template <bool Wait> __global__ void fetch(const float *x, float *y) {
    __shared__ __align__(16) float buffer[128];
    __pipeline_memcpy_async(buffer + threadIdx.x * 4, x + threadIdx.x * 4, 16);
    __pipeline_commit();
    if (Wait) __pipeline_wait_prior(0);
    y[threadIdx.x] = buffer[threadIdx.x * 4];
}
extern "C" int copy_async(const float *x, float *y, bool wait, cudaStream_t s) {
    if (wait) fetch<true><<<1, 32, 0, s>>>(x, y);
    else fetch<false><<<1, 32, 0, s>>>(x, y);
    return cudaGetLastError();
}

__global__ void checked(const int *x) {
    assert(x[threadIdx.x] >= 0);  // LINE checked
}
extern "C" int assert_positive(const int *x, cudaStream_t s) { LAUNCH((checked<<<1, 32, 0, s>>>(x))) }
__global__ void stopped(const int *x) {
    if (x[threadIdx.x] < 0) __trap();  // LINE stopped
}
extern "C" int trap_negative(const int *x, cudaStream_t s) { LAUNCH((stopped<<<1, 32, 0, s>>>(x))) }

__global__ void halves_wait(float *y) {
    if (threadIdx.x < 40) __syncthreads();  // LINE one
    else __shfl_sync(0xffffffffu, 1, 0);    // LINE other
    y[threadIdx.x] = 1;
}
extern "C" int diverge_at_barrier(float *y, cudaStream_t s) { LAUNCH((halves_wait<<<1, 64, 0, s>>>(y))) }
__global__ void one_shuffles(int *y) {
    int v = threadIdx.x;
    if (threadIdx.x % 8 == 0) v = __shfl_sync(0xffu << (threadIdx.x & 24), v, 3);  // LINE shuffle
    __syncthreads();
    y[threadIdx.x] = v;
}
extern "C" int shuffle_alone(int *y, cudaStream_t s) { LAUNCH((one_shuffles<<<1, 32, 0, s>>>(y))) }
__global__ void not_named(int *y) {
    y[threadIdx.x] = __shfl_sync(0xffffu, y[threadIdx.x], 3);  // LINE named
}
extern "C" int shuffle_unnamed(int *y, cudaStream_t s) { LAUNCH((not_named<<<1, 32, 0, s>>>(y))) }

__device__ __noinline__ int deep(int n, int *y) {
    int own[64];
    for (int k = 0; k < 64; ++k) own[k] = n + y[k % 4];
    return n < 0 ? own[3] : deep(n - 1, y) + own[n % 64];
}
__global__ void descend(int *y, int n) { y[0] = deep(n, y); }
extern "C" int recurse(int *y, int n, cudaStream_t s) { LAUNCH((descend<<<1, 1, 0, s>>>(y, n))) }

__global__ void tensor_map(float *y, const void *map) {
    __shared__ __align__(128) float tile[256];
    __shared__ unsigned long long barrier;
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile)), at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(0), "r"(0), "r"(at) : "memory");  // LINE tensor
    y[threadIdx.x] = tile[threadIdx.x];
}
extern "C" int use_tensor_map(float *y, cudaStream_t s) { LAUNCH((tensor_map<<<1, 32, 0, s>>>(y, y))) }
__global__ void __cluster_dims__(2, 1, 1) clustered(float *y) { y[blockIdx.x] = 1; }
extern "C" int use_cluster(float *y, cudaStream_t s) { LAUNCH((clustered<<<2, 1, 0, s>>>(y))) }
__global__ void single(float *y) { y[blockIdx.x] = 1; }
extern "C" int launch_cluster(float *y, cudaStream_t s) {
    cudaLaunchConfig_t configuration{};
    configuration.gridDim = 4;
    configuration.blockDim = 32;
    configuration.stream = s;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 2;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    configuration.attrs = &attribute;
    configuration.numAttrs = 1;
    return cudaLaunchKernelEx(&configuration, single, y);
}
extern "C" int begin_capture(cudaStream_t s) { return cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal); }

__global__ void __launch_bounds__(64) bounded(float *y) { y[threadIdx.x] = 1; }
extern "C" int launch(float *y, int kernel, int blocks, int threads, int shared, cudaStream_t s) {
    if (kernel) bounded<<<blocks, threads, shared, s>>>(y);
    else single<<<blocks, threads, shared, s>>>(y);
    return cudaGetLastError();
}
extern "C" int copy_over(cudaStream_t s) {
    float *p = nullptr;
    float host[64] = {};
    cudaMalloc(&p, 32 * sizeof(float));
    cudaError_t error = cudaMemcpyAsync(p, host, sizeof host, cudaMemcpyHostToDevice, s);
    cudaFree(p);
    return error;
}
