// One row held in the registers of one block, and reductions over it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

// Neighbouring elements that move in one instruction.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T item[N];
};

// Up to THREADS * ITEMS columns. WIDTH neighbouring columns move together; with WIDTH 1 a thread's columns are THREADS apart,
// so that a warp's accesses stay coalesced when rows are not aligned.
template <int THREADS, int ITEMS, int WIDTH>
struct Row {
  float value[ITEMS];

  static __device__ __forceinline__ int column(int item) {
    return (item / WIDTH * THREADS + static_cast<int>(threadIdx.x)) * WIDTH + item % WIDTH;
  }

  // Read a row; columns past its end hold `outside`.
  template <typename T>
  __device__ __forceinline__ void load(const T* __restrict__ row, int columns, float outside) {
#pragma unroll
    for (int item = 0; item < ITEMS; item += WIDTH) {
      if (column(item) < columns) {
        const auto pack = *reinterpret_cast<const Pack<T, WIDTH>*>(row + column(item));
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) value[item + k] = static_cast<float>(pack.item[k]);
      } else {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) value[item + k] = outside;
      }
    }
  }

  template <typename T>
  __device__ __forceinline__ void store(T* __restrict__ row, int columns) const {
#pragma unroll
    for (int item = 0; item < ITEMS; item += WIDTH) {
      if (column(item) < columns) {
        Pack<T, WIDTH> pack;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) pack.item[k] = static_cast<T>(value[item + k]);
        *reinterpret_cast<Pack<T, WIDTH>*>(row + column(item)) = pack;
      }
    }
  }
};

struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Largest {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Combine one value of every thread of the block, in a fixed order; all threads get the result.
template <int THREADS, typename Combine>
__device__ __forceinline__ float reduce_block(float value, Combine combine) {
  constexpr int WARPS = THREADS / 32;
  __shared__ float partial[WARPS];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  __syncthreads();  // readers of the reduction before are done with `partial`
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[threadIdx.x % WARPS];
#pragma unroll
  for (int offset = WARPS / 2; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

inline bool is_aligned(const void* pointer, size_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

template <int N>
using Constant = std::integral_constant<int, N>;

// Call launch(Constant<THREADS>, Constant<ITEMS>, Constant<WIDTH>) for the smallest block whose registers hold a row.
// Half the items would double the threads: at 16384 columns two blocks of 512 share a multiprocessor, so that one
// loads while the other reduces.
template <int WIDE, typename Launch>
int launch_rows(int columns, bool aligned, Launch launch) {
  const auto pick = [&](auto threads, auto items) {
    if (aligned) {
      launch(threads, items, Constant<WIDE>());
    } else {
      launch(threads, items, Constant<1>());
    }
  };
  if (columns <= 1024) {
    pick(Constant<128>(), Constant<8>());
  } else if (columns <= 4096) {
    pick(Constant<256>(), Constant<16>());
  } else if (columns <= 8192) {
    pick(Constant<512>(), Constant<16>());
  } else if (columns <= 16384) {
    pick(Constant<512>(), Constant<32>());
  } else {
    return cudaErrorInvalidValue;  // a longer row needs another plan
  }
  return cudaGetLastError();
}
