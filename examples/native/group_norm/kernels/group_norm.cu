// Group norm: one block a group of an image. Registers and shared memory keep as much of the group on chip as they hold;
// only the rest is read twice, and that is little enough to wait in the L2 cache.
#include <cuda_runtime.h>

#include "pack.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int HELD = 80;  // floats in a thread's registers, of the 128 that 512 threads may have each
constexpr int UNROLL = 4;

// Count, mean and sum of squared deviations; merged without cancellation (Chan, Golub, LeVeque 1979).
struct Moments {
  float count, mean, squares;
};

__device__ __forceinline__ Moments merge(Moments a, Moments b) {
  const float count = a.count + b.count;
  if (count == 0.0f) return a;
  const float share = b.count / count, distance = b.mean - a.mean;
  return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}

__device__ __forceinline__ Moments shuffle(Moments m, int offset) {
  return {__shfl_xor_sync(0xffffffffu, m.count, offset), __shfl_xor_sync(0xffffffffu, m.mean, offset),
          __shfl_xor_sync(0xffffffffu, m.squares, offset)};
}

__device__ __forceinline__ Moments merge_block(Moments m) {
  __shared__ Moments warps[WARPS];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) m = merge(m, shuffle(m, offset));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = m;
  __syncthreads();
  m = warps[threadIdx.x % WARPS];
#pragma unroll
  for (int offset = WARPS / 2; offset > 0; offset /= 2) m = merge(m, shuffle(m, offset));
  return m;
}

// `stashed`: packs of the group that shared memory holds, after those in registers.
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
    group_norm_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                      float* __restrict__ y, int groups, int channels_a_group, int positions, int stashed, float epsilon) {
  using Floats = Pack<float, WIDTH>;
  constexpr int HELD_PACKS = HELD / WIDTH;
  constexpr int STASH_FROM = HELD_PACKS * THREADS;
  extern __shared__ __align__(16) unsigned char memory[];
  auto* stash = reinterpret_cast<Floats*>(memory);
  const int plane = positions / WIDTH;  // WIDTH divides positions
  const int packs = plane * channels_a_group;
  const long long start = static_cast<long long>(blockIdx.x) * packs;
  const auto* from = reinterpret_cast<const Floats*>(x) + start;
  auto* to = reinterpret_cast<Floats*>(y) + start;

  // Sums of differences from the thread's first value: a large mean does not drown a small spread.
  const int mine = threadIdx.x < packs ? threadIdx.x : 0;
  const float origin = from[mine].item[0];
  float count = 0.0f, sum = 0.0f, squares = 0.0f;
  const auto add = [&](const Floats& values) {
    count += WIDTH;
#pragma unroll
    for (const float value : values.item) {
      const float distance = value - origin;
      sum += distance;
      squares += distance * distance;
    }
  };

  Floats held[HELD_PACKS];
#pragma unroll
  for (int k = 0; k < HELD_PACKS; ++k) {
    if (k * THREADS + threadIdx.x < packs) held[k] = from[k * THREADS + threadIdx.x];
  }
#pragma unroll
  for (int k = 0; k < HELD_PACKS; ++k) {
    if (k * THREADS + threadIdx.x < packs) add(held[k]);
  }
  for (int first = STASH_FROM + threadIdx.x; first < packs; first += THREADS * UNROLL) {
    Floats values[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      if (first + k * THREADS < packs) values[k] = from[first + k * THREADS];
    }
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      const int i = first + k * THREADS;
      if (i >= packs) continue;
      if (i - STASH_FROM < stashed) stash[i - STASH_FROM] = values[k];  // read again by this very thread
      add(values[k]);
    }
  }
  const float distance = count > 0.0f ? sum / count : 0.0f;
  const Moments all = merge_block({count, origin + distance, fmaxf(squares - sum * distance, 0.0f)});
  const float deviation = rsqrtf(all.squares / all.count + epsilon);

  const int first_channel = blockIdx.x % groups * channels_a_group;
  const auto write = [&](int i, Floats values) {
    const int channel = first_channel + i / plane;
    const float scale = deviation * weight[channel];
    const float shift = bias[channel] - all.mean * scale;
#pragma unroll
    for (float& value : values.item) value = value * scale + shift;
    to[i] = values;
  };
  // What was read last is read again first.
  const int steps = (packs + THREADS - 1) / THREADS;
#pragma unroll 4
  for (int step = steps - 1; step >= HELD_PACKS; --step) {
    const int i = step * THREADS + threadIdx.x;
    if (i < packs) write(i, i - STASH_FROM < stashed ? stash[i - STASH_FROM] : from[i]);
  }
#pragma unroll
  for (int k = 0; k < HELD_PACKS; ++k) {
    if (k * THREADS + threadIdx.x < packs) write(k * THREADS + threadIdx.x, held[k]);
  }
}

template <int WIDTH>
static int launch(const float* x, const float* weight, const float* bias, float* y, int images, int groups,
                  int channels_a_group, int positions, float epsilon, cudaStream_t stream) {
  int device = 0, limit = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const int reserved = 1024 + WARPS * static_cast<int>(sizeof(Moments));
  const int room = (limit - reserved) / static_cast<int>(sizeof(Pack<float, WIDTH>));
  const int left = positions / WIDTH * channels_a_group - HELD / WIDTH * THREADS;
  const int stashed = left < 0 ? 0 : left < room ? left : room;
  const int bytes = stashed * static_cast<int>(sizeof(Pack<float, WIDTH>));
  cudaFuncSetAttribute(group_norm_kernel<WIDTH>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  group_norm_kernel<WIDTH><<<images * groups, THREADS, bytes, stream>>>(x, weight, bias, y, groups, channels_a_group,
                                                                        positions, stashed, epsilon);
  return cudaGetLastError();
}

extern "C" int group_norm_launcher(const float* x, const float* weight, const float* bias, float* y, int images, int groups,
                                   int channels_a_group, int positions, float epsilon, cudaStream_t stream) {
  if (images == 0 || positions == 0) return cudaSuccess;
  if (positions % 4 == 0 && is_aligned(x) && is_aligned(y)) {
    return launch<4>(x, weight, bias, y, images, groups, channels_a_group, positions, epsilon, stream);
  }
  return launch<1>(x, weight, bias, y, images, groups, channels_a_group, positions, epsilon, stream);
}
