// Matrix products of float32 on tensor cores, at the accuracy of float32.
//
// Tensor cores multiply TF32, which has 11 bits of a float32's 24. So each operand is split into a large and a small part of
// 11 bits each, and large * large + large * small + small * large leaves out only what is 2^-22 of the product. Three
// products at the TF32 rate are still about twice as fast as float32 units.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 32;  // of a block
constexpr int WARP_M = 64, WARP_N = 32;                 // of one of its eight warps
constexpr int PRODUCT_THREADS = 256;
constexpr int STAGES = 3;  // tiles in shared memory, being filled or used
constexpr int MMA_M = 16, MMA_N = 8, MMA_K = 8;
// Lengths of rows in shared memory: 4 and 8 more than a multiple of 32, so that the lanes of a warp, which read 8 rows of 4
// or 4 rows of 8, meet 32 different banks.
constexpr int PITCH_K = TILE_K + 4, PITCH_N = TILE_N + 8;

struct Shape {
  int m, n, k;
};

// Copy to shared memory in the background; zeros when not `inside`.
template <int WIDTH>
__device__ __forceinline__ void copy_later(float* to, const float* from, bool inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = inside ? 4 * WIDTH : 0;
  if constexpr (WIDTH == 4) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  }
}

// ROWS x COLUMNS elements from (row, column) of a matrix of rows x columns.
template <int ROWS, int COLUMNS, int PITCH, int WIDTH>
__device__ __forceinline__ void copy_tile(float* to, const float* from, int row, int column, int rows, int columns) {
#pragma unroll 4
  for (int i = threadIdx.x; i < ROWS * COLUMNS / WIDTH; i += PRODUCT_THREADS) {
    const int r = i / (COLUMNS / WIDTH), c = i % (COLUMNS / WIDTH) * WIDTH;
    const bool inside = row + r < rows && column + c < columns;
    const float* source = inside ? from + static_cast<long long>(row + r) * columns + column + c : from;
    copy_later<WIDTH>(to + r * PITCH + c, source, inside);
  }
}

struct Split {
  uint32_t large, small;
};

// The nearest TF32, and what is left of the value, as TF32.
__device__ __forceinline__ Split split(float value) {
  const uint32_t large = (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
  const uint32_t small = __float_as_uint(value - __uint_as_float(large)) & 0xffffe000u;
  return {large, small};
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <bool B_TRANSPOSED>
constexpr int STAGE_FLOATS = TILE_M * PITCH_K + (B_TRANSPOSED ? TILE_N * PITCH_K : TILE_K * PITCH_N);

// Block (x, y, z): tile (row y, column x) of product z of a batch. B is k x n, or n x k when transposed. What is written at
// (row, column) is finish(sum, column). LONG: for sums of many products; more accurate, and with registers for one block only.
template <bool B_TRANSPOSED, int WIDTH, bool LONG, typename Finish>
__global__ void __launch_bounds__(PRODUCT_THREADS, LONG ? 1 : 2)
    product_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, Shape shape,
                   Finish finish) {
  constexpr int ROWS = WARP_M / MMA_M, COLUMNS = WARP_N / MMA_N;  // of a warp's tile, in tiles of an instruction
  extern __shared__ __align__(16) float memory[];
  a += static_cast<long long>(blockIdx.z) * shape.m * shape.k;
  b += static_cast<long long>(blockIdx.z) * shape.k * shape.n;
  c += static_cast<long long>(blockIdx.z) * shape.m * shape.n;
  const int first_row = blockIdx.y * TILE_M, first_column = blockIdx.x * TILE_N;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / (TILE_N / WARP_N) * WARP_M, warp_column = warp % (TILE_N / WARP_N) * WARP_N;
  const int tiles = (shape.k + TILE_K - 1) / TILE_K;

  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      float* a_tile = memory + tile % STAGES * STAGE_FLOATS<B_TRANSPOSED>;
      float* b_tile = a_tile + TILE_M * PITCH_K;
      const int k = tile * TILE_K;
      copy_tile<TILE_M, TILE_K, PITCH_K, WIDTH>(a_tile, a, first_row, k, shape.m, shape.k);
      if constexpr (B_TRANSPOSED) {
        copy_tile<TILE_N, TILE_K, PITCH_K, WIDTH>(b_tile, b, first_column, k, shape.n, shape.k);
      } else {
        copy_tile<TILE_K, TILE_N, PITCH_N, WIDTH>(b_tile, b, k, first_column, shape.k, shape.n);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // also when empty, so that counting groups counts tiles
  };

  float total[ROWS][COLUMNS][4] = {};
#pragma unroll
  for (int tile = 0; tile < STAGES - 1; ++tile) fetch(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();  // the tile is there for all, and all are done with the one before
    fetch(tile + STAGES - 1);
    const float* a_tile = memory + tile % STAGES * STAGE_FLOATS<B_TRANSPOSED>;
    const float* b_tile = a_tile + TILE_M * PITCH_K;

    // Tensor cores round sums towards zero, so long ones drift: each tile of them starts at zero, and is added with rounding
    // to nearest.
    float tile_sum[ROWS][COLUMNS][4] = {};
    auto& sum = LONG ? tile_sum : total;
#pragma unroll
    for (int k = 0; k < TILE_K; k += MMA_K) {
      uint32_t b_large[COLUMNS][2], b_small[COLUMNS][2];
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
        const int column = warp_column + j * MMA_N + lane / 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = k + lane % 4 + 4 * i;
          const Split parts = split(B_TRANSPOSED ? b_tile[column * PITCH_K + row] : b_tile[row * PITCH_N + column]);
          b_large[j][i] = parts.large;
          b_small[j][i] = parts.small;
        }
      }
      uint32_t a_large[ROWS][4], a_small[ROWS][4];
#pragma unroll
      for (int m = 0; m < ROWS; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = warp_row + m * MMA_M + lane / 4 + i % 2 * 8;
          const Split parts = split(a_tile[row * PITCH_K + k + lane % 4 + i / 2 * 4]);
          a_large[m][i] = parts.large;
          a_small[m][i] = parts.small;
        }
      }
      // One kind of product after the other: an instruction does not wait for the sum of the one before.
#pragma unroll
      for (int mma = 0; mma < ROWS * COLUMNS; ++mma) {
        const int m = mma / COLUMNS, j = mma % COLUMNS;
        multiply_add(sum[m][j], a_small[m], b_large[j]);
      }
#pragma unroll
      for (int mma = 0; mma < ROWS * COLUMNS; ++mma) {
        const int m = mma / COLUMNS, j = mma % COLUMNS;
        multiply_add(sum[m][j], a_large[m], b_small[j]);
      }
#pragma unroll
      for (int mma = 0; mma < ROWS * COLUMNS; ++mma) {
        const int m = mma / COLUMNS, j = mma % COLUMNS;
        multiply_add(sum[m][j], a_large[m], b_large[j]);
      }
    }
    if constexpr (LONG) {
#pragma unroll
      for (int m = 0; m < ROWS; ++m) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) total[m][j][i] += sum[m][j][i];
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + warp_row + m * MMA_M + lane / 4 + half * 8;
        const int column = first_column + warp_column + j * MMA_N + lane % 4 * 2;
        if (row >= shape.m || column >= shape.n) continue;
        float* to = c + static_cast<long long>(row) * shape.n + column;
        const float first = finish(total[m][j][2 * half], column);
        if (column + 1 == shape.n) {
          to[0] = first;
          continue;
        }
        const float second = finish(total[m][j][2 * half + 1], column + 1);
        if constexpr (WIDTH == 4) {
          *reinterpret_cast<float2*>(to) = {first, second};
        } else {
          to[0] = first;
          to[1] = second;
        }
      }
    }
  }
}

struct AsItIs {
  __device__ __forceinline__ float operator()(float sum, int) const { return sum; }
};

template <bool B_TRANSPOSED, int WIDTH, bool LONG, typename Finish>
int launch_product_of(const float* a, const float* b, float* c, int batch, Shape shape, Finish finish, cudaStream_t stream) {
  const auto kernel = product_kernel<B_TRANSPOSED, WIDTH, LONG, Finish>;
  constexpr int bytes = STAGES * STAGE_FLOATS<B_TRANSPOSED> * static_cast<int>(sizeof(float));
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  const dim3 grid((shape.n + TILE_N - 1) / TILE_N, (shape.m + TILE_M - 1) / TILE_M, batch);
  kernel<<<grid, PRODUCT_THREADS, bytes, stream>>>(a, b, c, shape, finish);
  return cudaGetLastError();
}

// Multiply `batch` pairs of matrices, all of them without gaps.
template <bool B_TRANSPOSED, typename Finish>
int launch_product(const float* a, const float* b, float* c, int batch, Shape shape, Finish finish, cudaStream_t stream) {
  if (batch == 0 || shape.m == 0 || shape.n == 0) return cudaSuccess;
  const auto is_aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool wide = shape.k % 4 == 0 && shape.n % 4 == 0 && is_aligned(a) && is_aligned(b) && is_aligned(c);
  const auto launch = [&](auto width, auto is_long) {
    return launch_product_of<B_TRANSPOSED, width(), is_long()>(a, b, c, batch, shape, finish, stream);
  };
  using Wide = std::integral_constant<int, 4>;
  using Narrow = std::integral_constant<int, 1>;
  if (shape.k > 256) return wide ? launch(Wide(), std::true_type()) : launch(Narrow(), std::true_type());
  return wide ? launch(Wide(), std::false_type()) : launch(Narrow(), std::false_type());
}
