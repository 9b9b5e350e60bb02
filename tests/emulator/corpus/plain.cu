// Kernels as people write them, with nothing but the language: reductions, tiles, atomics, divergence, symbols.
#include <cuda_runtime.h>
#include <cstdio>

__device__ float warp_sum(float v) {
    for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

__global__ void row_sum(const float *x, float *y, int columns) {
    __shared__ float parts[32];
    float v = 0;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) v += x[blockIdx.x * columns + c];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < (blockDim.x + 31) / 32 ? parts[threadIdx.x] : 0.0f;
        v = warp_sum(v);
        if (threadIdx.x == 0) y[blockIdx.x] = v;
    }
}
extern "C" int sum_rows(const float *x, float *y, int rows, int columns, int threads, cudaStream_t stream) {
    row_sum<<<rows, threads, 0, stream>>>(x, y, columns);
    return cudaGetLastError();
}

template <int Tile> __global__ void tiled(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float as[Tile][Tile + 1], bs[Tile][Tile];
    int row = blockIdx.y * Tile + threadIdx.y, column = blockIdx.x * Tile + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < k; t += Tile) {
        as[threadIdx.y][threadIdx.x] = row < m && t + threadIdx.x < k ? a[row * k + t + threadIdx.x] : 0.0f;
        bs[threadIdx.y][threadIdx.x] = column < n && t + threadIdx.y < k ? b[(t + threadIdx.y) * n + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < Tile; ++i) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
extern "C" int multiply(const float *a, const float *b, float *c, int m, int n, int k, int tile, cudaStream_t stream) {
    dim3 block(tile, tile), grid((n + tile - 1) / tile, (m + tile - 1) / tile);
    if (tile == 16) tiled<16><<<grid, block, 0, stream>>>(a, b, c, m, n, k);
    else if (tile == 8) tiled<8><<<grid, block, 0, stream>>>(a, b, c, m, n, k);
    else return 1;
    return cudaGetLastError();
}

extern __shared__ float row_buffer[];
__global__ void softmax_kernel(const float *x, float *y, int columns) {
    float *parts = row_buffer + columns;
    const float *row = x + static_cast<size_t>(blockIdx.x) * columns;
    float top = -INFINITY;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) top = fmaxf(top, row_buffer[c] = row[c]);
    parts[threadIdx.x] = top;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + half]);
    }
    __syncthreads();
    top = parts[0];
    __syncthreads();
    float sum = 0;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += row_buffer[c] = expf(row_buffer[c] - top);
    parts[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < columns; c += blockDim.x) y[static_cast<size_t>(blockIdx.x) * columns + c] = row_buffer[c] / parts[0];
}
extern "C" int softmax(const float *x, float *y, int rows, int columns, cudaStream_t stream) {
    size_t bytes = (columns + 128) * sizeof(float);
    cudaError_t error = cudaFuncSetAttribute(softmax_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error) return error;
    softmax_kernel<<<rows, 128, bytes, stream>>>(x, y, columns);
    return cudaGetLastError();
}

template <class T, class F> __global__ void each(const T *__restrict__ x, T *__restrict__ y, long long n, F f) {
    for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < n; i += static_cast<long long>(gridDim.x) * blockDim.x)
        y[i] = f(__ldg(x + i));
}
struct Affine {
    float scale, shift;
    __device__ float operator()(float x) const { return x * scale + shift; }
};
extern "C" int affine(const float *x, float *y, long long n, float scale, float shift, cudaStream_t stream) {
    int blocks = 0, size = 0;
    cudaError_t error = cudaOccupancyMaxPotentialBlockSize(&blocks, &size, each<float, Affine>);
    if (error) return error;
    each<<<blocks < 8 ? blocks : 8, size, 0, stream>>>(x, y, n, Affine{scale, shift});
    return cudaGetLastError();
}

__global__ void __launch_bounds__(128) relu4(const float4 *x, float4 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = x[i];
    y[i] = make_float4(fmaxf(v.x, 0), fmaxf(v.y, 0), fmaxf(v.z, 0), fmaxf(v.w, 0));
}
extern "C" int relu_vector(const float *x, float *y, int n, int threads, cudaStream_t stream) {
    relu4<<<(n / 4 + threads - 1) / threads, threads, 0, stream>>>(reinterpret_cast<const float4 *>(x), reinterpret_cast<float4 *>(y), n / 4);
    return cudaGetLastError();
}

__device__ float atomic_max(float *at, float value) {
    int *bits = reinterpret_cast<int *>(at), old = *bits, assumed;
    do {
        assumed = old;
        if (__int_as_float(assumed) >= value) break;
        old = atomicCAS(bits, assumed, __float_as_int(value));
    } while (assumed != old);
    return __int_as_float(old);
}
__global__ void collect(const float *x, int n, int *histogram, float *top, double *sum, unsigned long long *bits) {
    __shared__ int local[16];
    if (threadIdx.x < 16) local[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&local[min(15, max(0, static_cast<int>(x[i] * 4 + 8)))], 1);
        atomic_max(top, x[i]);
        atomicAdd(sum, static_cast<double>(x[i]));
        atomicOr(bits, 1ull << (i % 64));
    }
    __syncthreads();
    if (threadIdx.x < 16 && local[threadIdx.x]) atomicAdd(histogram + threadIdx.x, local[threadIdx.x]);
}
extern "C" int statistics(const float *x, int *histogram, float *top, double *sum, long long *bits, int n, cudaStream_t stream) {
    cudaMemsetAsync(histogram, 0, 16 * sizeof(int), stream);
    collect<<<(n + 255) / 256, 256, 0, stream>>>(x, n, histogram, top, sum, reinterpret_cast<unsigned long long *>(bits));
    return cudaGetLastError();
}

__global__ void collatz(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i], steps = 0;
    while (v != 1) {
        if (v % 2) v = 3 * v + 1;
        else v /= 2;
        if (++steps > 1000) break;
    }
    switch (steps % 5) {
        case 0: steps += 1000; break;
        case 1: steps *= 3; break;
        case 2: steps = -steps; break;
        case 3: steps ^= 0x55; break;
        default: break;
    }
    y[i] = steps;
}
extern "C" int collatz_steps(const int *x, int *y, int n, cudaStream_t stream) {
    collatz<<<(n + 63) / 64, 64, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}

__global__ void turn(const float *x, float *y, int d0, int d1, int d2) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y, k = blockIdx.z * blockDim.z + threadIdx.z;
    if (i < d2 && j < d1 && k < d0) y[(i * d1 + j) * d0 + k] = x[(k * d1 + j) * d2 + i];
}
extern "C" int reverse_axes(const float *x, float *y, int d0, int d1, int d2, cudaStream_t stream) {
    dim3 block(8, 4, 2), grid((d2 + 7) / 8, (d1 + 3) / 4, (d0 + 1) / 2);
    turn<<<grid, block, 0, stream>>>(x, y, d0, d1, d2);
    return cudaGetLastError();
}

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
typedef float (*Function)(float);
__device__ float twice(float x) { return 2 * x; }
__device__ float squared(float x) { return x * x; }
__device__ Function functions[2] = {twice, squared};
struct Shape {
    __device__ virtual float area() const = 0;
};
struct Square : Shape {
    float side;
    __device__ explicit Square(float s) : side(s) {}
    __device__ float area() const override { return side * side; }
};
struct Disc : Shape {
    float radius;
    __device__ explicit Disc(float r) : radius(r) {}
    __device__ float area() const override { return 3 * radius * radius; }
};
__global__ void calls(const int *x, int *fib, float *applied, float *areas, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    fib[i] = fibonacci(x[i]);
    applied[i] = functions[i % 2](static_cast<float>(x[i]));
    Square square(static_cast<float>(x[i]));
    Disc disc(static_cast<float>(x[i]));
    const Shape *shape = i % 3 ? static_cast<const Shape *>(&square) : &disc;
    areas[i] = shape->area();
}
extern "C" int call_functions(const int *x, int *fib, float *applied, float *areas, int n, cudaStream_t stream) {
    calls<<<1, 64, 0, stream>>>(x, fib, applied, areas, n);
    return cudaGetLastError();
}

__constant__ float filter[5];
__device__ int counter;
__device__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
__managed__ int managed = 3;
__global__ void filtered(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = table[i % 4] * managed;
    for (int k = -2; k <= 2; ++k)
        if (i + k >= 0 && i + k < n) v += filter[k + 2] * x[i + k];
    y[i] = v;
    atomicAdd(&counter, 1);
}
extern "C" int apply_filter(const float *x, float *y, int *count, int n, float weight, cudaStream_t stream) {
    float weights[5] = {weight, 2 * weight, 3 * weight, 4 * weight, 5 * weight};
    cudaMemcpyToSymbolAsync(filter, weights, sizeof weights, 0, cudaMemcpyHostToDevice, stream);
    int zero = 0;
    cudaMemcpyToSymbol(counter, &zero, sizeof zero);
    filtered<<<(n + 127) / 128, 128, 0, stream>>>(x, y, n);
    return cudaMemcpyFromSymbol(count, counter, sizeof(int));
}

__global__ void doubled(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
extern "C" int through_scratch(const float *x, float *y, int n, cudaStream_t stream) {
    float *scratch = nullptr, *more = nullptr;
    cudaStream_t side;
    cudaEvent_t event;
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (cudaError_t e = cudaMalloc(&scratch, n * sizeof(float))) return e;
    if (cudaError_t e = cudaMallocAsync(&more, n * sizeof(float), stream)) return e;
    cudaMemsetAsync(scratch, 0, n * sizeof(float), stream);
    doubled<<<(n + 255) / 256, 256, 0, stream>>>(x, scratch, n);
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(side, event, 0);
    cudaMemcpyAsync(more, scratch, n * sizeof(float), cudaMemcpyDeviceToDevice, side);
    doubled<<<(n + 255) / 256, 256, 0, side>>>(more, y, n);
    cudaStreamSynchronize(side);
    cudaFree(scratch);
    cudaFreeAsync(more, stream);
    cudaEventDestroy(event);
    cudaStreamDestroy(side);
    int device = -1, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, device);
    if (properties.major != 9 || properties.multiProcessorCount != processors || properties.warpSize != 32) return 2;
    if (properties.sharedMemPerBlockOptin != 227 * 1024 || properties.maxThreadsPerBlock != 1024) return 3;
    return cudaDeviceSynchronize();
}

__global__ void speak(int n, const char *name) {
    if (static_cast<int>(threadIdx.x) < n) printf("thread %d of %s: %.2f %5s %lld %c%%\n", threadIdx.x, name, threadIdx.x * 0.5, "abc", 1ll << 40, 'x');
}
__device__ char kernel_name[8] = "block 0";
extern "C" int print_lines(int n, cudaStream_t stream) {
    void *name = nullptr;
    cudaGetSymbolAddress(&name, kernel_name);
    speak<<<1, 32, 0, stream>>>(n, static_cast<const char *>(name));
    return cudaGetLastError();
}

__global__ void votes(const int *x, int *y) {
    int lane = threadIdx.x % 32, v = x[threadIdx.x];
    unsigned odd = __ballot_sync(0xffffffffu, v % 2), same = __match_any_sync(0xffffffffu, v);
    int scan = v;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(0xffffffffu, scan, d);
        if (lane >= d) scan += other;
    }
    int most = __reduce_max_sync(0xffffffffu, v), quad = __shfl_down_sync(0xffffffffu, v, 1, 4);
    if (v % 2) scan += __popc(__activemask() & odd) > 0 ? 1 : 1000000;
    __syncwarp();
    y[threadIdx.x] = scan + 100 * __popc(odd) + 10000 * __popc(same) + most + (__any_sync(0xffffffffu, v > 5) ? 7 : 0) + quad;
}
extern "C" int warp_votes(const int *x, int *y, int n, cudaStream_t stream) {
    votes<<<1, n, 0, stream>>>(x, y);
    return cudaGetLastError();
}

struct Big {
    float weights[40];
    int count;
    long long stride;
};
__global__ void weighted(const float *x, float *y, Big big, int n) {
    float local[8];
    int i = threadIdx.x;
    if (i >= n) return;
    for (int k = 0; k < 8; ++k) local[(k * 3 + i) % 8] = x[i] * big.weights[(i + k) % big.count];
    float v = 0;
    for (int k = 0; k < 8; ++k) v += local[(k + i) % 8] * static_cast<float>(k);
    y[i * big.stride] = v;
}
extern "C" int by_value(const float *x, float *y, int n, cudaStream_t stream) {
    Big big{};
    for (int k = 0; k < 40; ++k) big.weights[k] = static_cast<float>(k);
    big.count = 40;
    big.stride = 2;
    weighted<<<1, 64, 0, stream>>>(x, y, big, n);
    return cudaGetLastError();
}
