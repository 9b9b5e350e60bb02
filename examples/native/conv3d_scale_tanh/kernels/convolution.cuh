// Convolutions of float32 with stride 1 on tensor cores, at the accuracy of float32.
//
// A convolution is a product: weights (out channels x taps, a tap being a channel and a place in the window) times a matrix
// of taps x output positions, whose elements are picked from the input as they are needed. Its result has the layout of the
// output.
//
// Tensor cores multiply TF32, which has 11 bits of a float32's 24. So each operand is split into a large and a small part of
// 11 bits each, and large * large + large * small + small * large leaves out only what is 2^-22 of the product.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

struct Convolution {
  int channels, out_channels;
  int depth, height, width;  // of the input; 1 for missing dimensions
  int out_depth, out_height, out_width;
  int kernel_depth, kernel_height, kernel_width;
  int pad_depth, pad_height, pad_width;
  __host__ __device__ int taps() const { return channels * kernel_depth * kernel_height * kernel_width; }
  __host__ __device__ int positions() const { return out_depth * out_height * out_width; }
};

constexpr int CONVOLUTION_THREADS = 256;
constexpr int TILE_K = 32;
constexpr int MMA_M = 16, MMA_N = 8, MMA_K = 8;
constexpr int WARP_N = 32;
// Length of a row of weights in shared memory: 4 more than a multiple of 32, so that the lanes of a warp, which read 8 rows
// of 4, meet 32 different banks. Rows of positions, of which 4 are read 8 wide, get 8 more.
constexpr int PITCH_K = TILE_K + 4;

// A block's tile: few out channels are met with more positions.
template <int TILE_ROWS>
struct Tile {
  static constexpr int M = TILE_ROWS;
  static constexpr int WARP_M = M < 64 ? M : 64;
  static constexpr int WARPS_N = CONVOLUTION_THREADS / 32 / (M / WARP_M);
  static constexpr int N = WARPS_N * WARP_N;
  static constexpr int PITCH_N = N + 8;
  static constexpr int STAGES = M == 32 ? 2 : 3;
  static constexpr int STAGE_FLOATS = M * PITCH_K + TILE_K * PITCH_N;
};

// Where a tap is read: the distance from the window's corner in memory, and the number of its place in the window.
struct Tap {
  int offset, place;
};
constexpr int MOST_PLACES = 31;  // one bit each; the last bit is never set, for taps that do not exist

template <int WIDTH>
__device__ __forceinline__ void copy_later(float* to, const float* from, bool inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = inside ? 4 * WIDTH : 0;  // what is not copied becomes 0
  if constexpr (WIDTH == 4) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
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
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Block (x, y, z): positions of tile x, out channels of tile y, image z. What is written is finish(sum, out channel).
// WIDTH: weights that are copied together.
template <int TILE_ROWS, int WIDTH, typename Finish>
__global__ void __launch_bounds__(CONVOLUTION_THREADS, TILE_ROWS == 32 ? 2 : 1)
    convolution_kernel(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y, Convolution shape,
                       Finish finish) {
  using T = Tile<TILE_ROWS>;
  constexpr int ROWS = T::WARP_M / MMA_M, COLUMNS = WARP_N / MMA_N;  // of a warp's tile, in tiles of an instruction
  extern __shared__ __align__(16) float memory[];
  auto* taps = reinterpret_cast<Tap*>(memory + T::STAGES * T::STAGE_FLOATS);
  const int tap_count = shape.taps(), positions = shape.positions();
  const int tiles = (tap_count + TILE_K - 1) / TILE_K;
  x += static_cast<long long>(blockIdx.z) * shape.channels * shape.depth * shape.height * shape.width;
  y += static_cast<long long>(blockIdx.z) * shape.out_channels * positions;
  const int first_row = blockIdx.y * T::M, first_column = blockIdx.x * T::N;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / T::WARPS_N * T::WARP_M, warp_column = warp % T::WARPS_N * WARP_N;

  const int window = shape.kernel_depth * shape.kernel_height * shape.kernel_width;
  const auto place_of = [&](int place) {
    return int3{place % shape.kernel_width, place / shape.kernel_width % shape.kernel_height,
                place / (shape.kernel_width * shape.kernel_height)};
  };
  for (int k = threadIdx.x; k < tiles * TILE_K; k += CONVOLUTION_THREADS) {
    const int3 at = place_of(k % window);
    const int offset = ((k / window * shape.depth + at.z) * shape.height + at.y) * shape.width + at.x;
    taps[k] = k < tap_count ? Tap{offset, k % window} : Tap{0, MOST_PLACES};
  }

  // A thread fetches taps of one position. Of its window, the corner and more may lie outside the input.
  const int my_position = first_column + threadIdx.x % T::N;
  const int my_depth = my_position / (shape.out_width * shape.out_height) - shape.pad_depth;
  const int my_row = my_position / shape.out_width % shape.out_height - shape.pad_height;
  const int my_column = my_position % shape.out_width - shape.pad_width;
  const int corner = (my_depth * shape.height + my_row) * shape.width + my_column;
  unsigned int places_inside = 0;
  for (int place = 0; place < window; ++place) {
    const int3 at = place_of(place);
    const int depth = my_depth + at.z, row = my_row + at.y, column = my_column + at.x;
    const bool inside = my_position < positions && depth >= 0 && depth < shape.depth && row >= 0 && row < shape.height &&
                        column >= 0 && column < shape.width;
    places_inside |= static_cast<unsigned int>(inside) << place;
  }

  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      float* a_tile = memory + tile % T::STAGES * T::STAGE_FLOATS;
      float* b_tile = a_tile + T::M * PITCH_K;
      const int k = tile * TILE_K;
      for (int i = threadIdx.x; i < T::M * TILE_K / WIDTH; i += CONVOLUTION_THREADS) {
        const int r = i / (TILE_K / WIDTH), c = i % (TILE_K / WIDTH) * WIDTH;
        const bool inside = first_row + r < shape.out_channels && k + c < tap_count;
        const float* from = inside ? weight + static_cast<long long>(first_row + r) * tap_count + k + c : weight;
        copy_later<WIDTH>(a_tile + r * PITCH_K + c, from, inside);
      }
#pragma unroll 8
      for (int i = threadIdx.x / T::N; i < TILE_K; i += CONVOLUTION_THREADS / T::N) {
        const Tap tap = taps[k + i];
        const bool inside = places_inside >> tap.place & 1;
        copy_later<1>(b_tile + i * T::PITCH_N + threadIdx.x % T::N, inside ? x + corner + tap.offset : x, inside);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // also when empty, so that counting groups counts tiles
  };

  __syncthreads();  // taps are there
  float total[ROWS][COLUMNS][4] = {};
#pragma unroll
  for (int tile = 0; tile < T::STAGES - 1; ++tile) fetch(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    asm volatile("cp.async.wait_group %0;" ::"n"(T::STAGES - 2) : "memory");
    __syncthreads();  // the tile is there for all, and all are done with the one before
    fetch(tile + T::STAGES - 1);
    const float* a_tile = memory + tile % T::STAGES * T::STAGE_FLOATS;
    const float* b_tile = a_tile + T::M * PITCH_K;

    // Tensor cores round sums towards zero, so long ones drift: each tile starts at zero, and is added with rounding to
    // nearest.
    float sum[ROWS][COLUMNS][4] = {};
#pragma unroll
    for (int k = 0; k < TILE_K; k += MMA_K) {
      uint32_t b_large[COLUMNS][2], b_small[COLUMNS][2];
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = k + lane % 4 + 4 * i, column = warp_column + j * MMA_N + lane / 4;
          const Split parts = split(b_tile[row * T::PITCH_N + column]);
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
#pragma unroll
    for (int m = 0; m < ROWS; ++m) {
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[m][j][i] += sum[m][j][i];
      }
    }
  }

  const bool pairs = positions % 2 == 0 && reinterpret_cast<uintptr_t>(y) % 8 == 0;
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + warp_row + m * MMA_M + lane / 4 + half * 8;
        const int column = first_column + warp_column + j * MMA_N + lane % 4 * 2;
        if (row >= shape.out_channels || column >= positions) continue;
        float* to = y + static_cast<long long>(row) * positions + column;
        const float first = finish(total[m][j][2 * half], row), second = finish(total[m][j][2 * half + 1], row);
        if (pairs) {
          *reinterpret_cast<float2*>(to) = {first, second};
        } else {
          to[0] = first;
          if (column + 1 < positions) to[1] = second;
        }
      }
    }
  }
}

template <int TILE_ROWS, int WIDTH, typename Finish>
int launch_convolution_of(const float* x, const float* weight, float* y, int images, Convolution shape, Finish finish,
                          cudaStream_t stream) {
  using T = Tile<TILE_ROWS>;
  const auto kernel = convolution_kernel<TILE_ROWS, WIDTH, Finish>;
  const int taps = (shape.taps() + TILE_K - 1) / TILE_K * TILE_K;
  const int bytes = T::STAGES * T::STAGE_FLOATS * static_cast<int>(sizeof(float)) + taps * static_cast<int>(sizeof(Tap));
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  const dim3 grid((shape.positions() + T::N - 1) / T::N, (shape.out_channels + T::M - 1) / T::M, images);
  kernel<<<grid, CONVOLUTION_THREADS, bytes, stream>>>(x, weight, y, shape, finish);
  return cudaGetLastError();
}

// Convolve `images` inputs without gaps; finish(sum, out channel) is what is written. A window has at most 31 places.
template <typename Finish>
int launch_convolution(const float* x, const float* weight, float* y, int images, Convolution shape, Finish finish,
                       cudaStream_t stream) {
  if (images == 0 || shape.positions() == 0) return cudaSuccess;
  if (shape.kernel_depth * shape.kernel_height * shape.kernel_width > MOST_PLACES) return cudaErrorInvalidValue;
  const bool wide = shape.taps() % 4 == 0 && reinterpret_cast<uintptr_t>(weight) % 16 == 0;
  const auto launch = [&](auto pick) {
    constexpr int ROWS = decltype(pick)::M;
    return wide ? launch_convolution_of<ROWS, 4>(x, weight, y, images, shape, finish, stream)
                : launch_convolution_of<ROWS, 1>(x, weight, y, images, shape, finish, stream);
  };
  if (shape.out_channels <= 32) return launch(Tile<32>());
  if (shape.out_channels <= 64) return launch(Tile<64>());
  return launch(Tile<128>());
}
