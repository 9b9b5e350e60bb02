// NVIDIA's own headers, as they are: cooperative groups, cub, barriers of libcu++.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cuda/barrier>
#include <cuda_runtime.h>

namespace cg = cooperative_groups;

__global__ void grouped(const int *x, int *tiles, int *blocks, int *odd) {
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int v = x[block.thread_rank()];
    int sum = cg::reduce(tile, v, cg::plus<int>());
    if (tile.thread_rank() == 0) tiles[tile.meta_group_rank()] = sum;
    __shared__ int total;
    if (block.thread_rank() == 0) total = 0;
    block.sync();
    int first = tile.shfl(sum, 0);
    if (tile.thread_rank() == 0) atomicAdd(&total, first);
    block.sync();
    if (block.thread_rank() == 0) *blocks = total;
    if (v % 2) {
        cg::coalesced_group together = cg::coalesced_threads();
        int count = cg::reduce(together, 1, cg::plus<int>());
        if (together.thread_rank() == 0) atomicAdd(odd, count);
    }
}
extern "C" int group_sums(const int *x, int *tiles, int *blocks, int *odd, int n, cudaStream_t stream) {
    grouped<<<1, n, 0, stream>>>(x, tiles, blocks, odd);
    return cudaGetLastError();
}

// Each round reads what the whole grid wrote in the last one.
__global__ void rounds(int *a, int *b, int n, int count) {
    cg::grid_group grid = cg::this_grid();
    int i = static_cast<int>(grid.thread_rank());
    for (int r = 0; r < count; ++r) {
        int *from = r % 2 ? b : a, *to = r % 2 ? a : b;
        if (i < n) to[i] = from[(i + 1) % n] + from[(i + n - 1) % n];
        grid.sync();
    }
}
extern "C" int spread(int *a, int *b, int n, int count, cudaStream_t stream) {
    void *arguments[] = {&a, &b, &n, &count};
    return cudaLaunchCooperativeKernel(reinterpret_cast<void *>(rounds), dim3((n + 63) / 64), dim3(64), arguments, 0, stream);
}

__global__ void cub_block(const int *x, int *sum, int *scan, int *sorted, float *most) {
    using Reduce = cub::BlockReduce<int, 128>;
    using Scan = cub::BlockScan<int, 128>;
    using Sort = cub::BlockRadixSort<int, 128, 2>;
    using Warp = cub::WarpReduce<float>;
    __shared__ union {
        Reduce::TempStorage reduce;
        Scan::TempStorage scan;
        Sort::TempStorage sort;
        Warp::TempStorage warp[4];
    } memory;
    int t = threadIdx.x, keys[2] = {x[2 * t], x[2 * t + 1]};
    int total = Reduce(memory.reduce).Sum(keys[0] + keys[1]);
    if (t == 0) *sum = total;
    __syncthreads();
    int before;
    Scan(memory.scan).ExclusiveSum(keys[0], before);
    scan[t] = before;
    __syncthreads();
    float top = Warp(memory.warp[t / 32]).Reduce(static_cast<float>(keys[1]), [](float a, float b) { return a > b ? a : b; });
    if (t % 32 == 0) most[t / 32] = top;
    __syncthreads();
    Sort(memory.sort).Sort(keys);
    sorted[2 * t] = keys[0];
    sorted[2 * t + 1] = keys[1];
}
extern "C" int block_primitives(const int *x, int *sum, int *scan, int *sorted, float *most, cudaStream_t stream) {
    cub_block<<<1, 128, 0, stream>>>(x, sum, scan, sorted, most);
    return cudaGetLastError();
}

__global__ void staged(const int *x, int *y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ alignas(16) int tile[64];
    cg::thread_block block = cg::this_thread_block();
    if (block.thread_rank() == 0) init(&barrier, block.size());
    block.sync();
    cuda::memcpy_async(block, tile, x, cuda::aligned_size_t<16>(sizeof tile), barrier);
    barrier.arrive_and_wait();
    y[threadIdx.x] = tile[63 - threadIdx.x];
    cuda::barrier<cuda::thread_scope_block>::arrival_token token = barrier.arrive();
    barrier.wait(std::move(token));
}
extern "C" int reverse_staged(const int *x, int *y, cudaStream_t stream) {
    staged<<<1, 64, 0, stream>>>(x, y);
    return cudaGetLastError();
}
