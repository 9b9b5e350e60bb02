// Several neighbouring elements that move in one instruction.
#pragma once
#include <cstdint>

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T item[N];
};

inline bool is_aligned(const void* pointer, size_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

inline unsigned int ceil_div(long long a, long long b) { return static_cast<unsigned int>((a + b - 1) / b); }
