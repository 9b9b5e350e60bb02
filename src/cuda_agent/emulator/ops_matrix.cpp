// Matrix operations of the tensor cores: mma.sync, wmma, ldmatrix, stmatrix, movmatrix.
// Source of the fragment layouts: PTX ISA, "Matrix multiply-accumulate operation using mma instruction".
#include <cmath>

#include "half.h"
#include "machine.h"

namespace ca {
namespace {

enum Type { F16, BF16, TF32, S8, U8, F32, S32, F64 };

int elements_in_register(int type) { return type == F16 || type == BF16 ? 2 : type == S8 || type == U8 ? 4 : 1; }

double element(const Context &c, int32_t reg, int type, int lane, int part) {
    switch (type) {
        case F16: return Half::up(static_cast<uint16_t>(c.at<uint32_t>(reg)[lane] >> (16 * part)));
        case BF16: return Brain::up(static_cast<uint16_t>(c.at<uint32_t>(reg)[lane] >> (16 * part)));
        case TF32: return std::bit_cast<float>(c.at<uint32_t>(reg)[lane] & 0xffffe000u);
        case S8: return static_cast<int8_t>(c.at<uint32_t>(reg)[lane] >> (8 * part));
        case U8: return static_cast<uint8_t>(c.at<uint32_t>(reg)[lane] >> (8 * part));
        case F32: return c.at<float>(reg)[lane];
        case S32: return c.at<int32_t>(reg)[lane];
        default: return c.at<double>(reg)[lane];
    }
}
void set_element(Context &c, int32_t reg, int type, int lane, int part, double v, bool saturate) {
    uint32_t *w = c.at<uint32_t>(reg) + lane;
    switch (type) {
        case F16:
        case BF16: {
            uint32_t h = type == F16 ? Half::down(to_odd(v)) : Brain::down(to_odd(v));
            *w = part ? (*w & 0xffffu) | (h << 16) : (*w & 0xffff0000u) | h;
            break;
        }
        case F32: c.at<float>(reg)[lane] = static_cast<float>(v); break;
        case S32:
            if (saturate) v = v > 2147483647.0 ? 2147483647.0 : v < -2147483648.0 ? -2147483648.0 : v;
            c.at<int32_t>(reg)[lane] = static_cast<int32_t>(static_cast<int64_t>(v));
            break;
        case F64: c.at<double>(reg)[lane] = v; break;
        default: break;
    }
}

void need_whole_warp(const Context &c, const char *what) {
    if (c.mask != c.warp->live || c.mask != kFull)
        throw Fault{CA_ILLEGAL, std::string(what) + " needs all 32 lanes of the warp together; it runs", __builtin_ctz(c.mask)};
}

// Products are exact in double; the sum is rounded once to the accumulator's type.
void multiply(int m, int n, int k, const double *a, const double *b, double *d) {
    for (int r = 0; r < m; ++r)
        for (int x = 0; x < n; ++x) {
            double sum = d[r * n + x];
            for (int t = 0; t < k; ++t) sum += a[r * k + t] * b[t * n + x];
            d[r * n + x] = sum;
        }
}

// list: D, A, B, C registers. o0 list, o1..o3 how many A, B, C; imm0 = type of A | of B << 4 | of C << 8 | of D << 12 | k << 16 |
// m << 24; imm1: 1 saturates.
void mma(Context &c, const Instruction &i) {
    need_whole_warp(c, "mma.sync");
    const auto &list = c.frame->function->lists[static_cast<size_t>(i.o[0])];
    int na = i.o[1], nb = i.o[2], nc = i.o[3];
    int ta = static_cast<int>(i.imm[0] & 15), tb = static_cast<int>((i.imm[0] >> 4) & 15), tc = static_cast<int>((i.imm[0] >> 8) & 15);
    int td = static_cast<int>((i.imm[0] >> 12) & 15), k = static_cast<int>((i.imm[0] >> 16) & 255), m = static_cast<int>(i.imm[0] >> 24);
    const int32_t *rd = list.data(), *ra = rd + nc, *rb = ra + na, *rc = rb + nb;
    static thread_local double a[16 * 32], b[32 * 8], d[16 * 8];
    int pa = elements_in_register(ta);
    for (int lane = 0; lane < kLanes; ++lane) {
        int g = lane >> 2, t = lane & 3;
        for (int r = 0; r < na; ++r)
            for (int e = 0; e < pa; ++e) {
                int row = m == 8 ? g : g + 8 * (r & 1), col = t * pa + e + 4 * pa * (m == 8 ? r : r >> 1);
                a[row * k + col] = element(c, ra[r], ta, lane, e);
            }
        for (int r = 0; r < nb; ++r)
            for (int e = 0; e < pa; ++e) b[(t * pa + e + 4 * pa * r) * 8 + g] = element(c, rb[r], tb, lane, e);
        int pc = elements_in_register(tc);
        for (int r = 0; r < nc; ++r)
            for (int e = 0; e < pc; ++e) {
                int row = pc == 2 ? g + 8 * r : g + 8 * (r >> 1), col = t * 2 + (pc == 2 ? e : r & 1);
                d[row * 8 + col] = element(c, rc[r], tc, lane, e);
            }
    }
    multiply(m, 8, k, a, b, d);
    for (int lane = 0; lane < kLanes; ++lane) {
        int g = lane >> 2, t = lane & 3, pc = elements_in_register(td);
        for (int r = 0; r < nc; ++r)
            for (int e = 0; e < pc; ++e) {
                int row = pc == 2 ? g + 8 * r : g + 8 * (r >> 1), col = t * 2 + (pc == 2 ? e : r & 1);
                set_element(c, rd[r], td, lane, e, d[row * 8 + col], i.imm[1]);
            }
    }
}

// wmma fragments are opaque to a program, so any layout serves that load, multiply and store share: lane l holds the
// elements (l * n + e) mod size of the row-major tile, n elements a lane.
struct Tile {
    int rows, cols;
};
Tile tile(int64_t which, int m, int n, int k) { return which == 0 ? Tile{m, k} : which == 1 ? Tile{k, n} : Tile{m, n}; }

uint32_t bytes_of(int type) { return type == F16 || type == BF16 ? 2 : type == S8 || type == U8 ? 1 : type == F64 ? 8 : 4; }

// list: registers. o0 list, o1 address, o2 stride register or -1, o3 type, o4 m, o5 n, o6 k, o7 column-major,
// o8 bits of the address register (0 generic, 32 or 64 shared); imm0 displacement, imm1 which of a, b, c.
template <bool Store> void wmma_memory(Context &c, const Instruction &i) {
    need_whole_warp(c, Store ? "wmma.store" : "wmma.load");
    const auto &list = c.frame->function->lists[static_cast<size_t>(i.o[0])];
    Tile t = tile(i.imm[1], i.o[4], i.o[5], i.o[6]);
    int type = i.o[3], parts = elements_in_register(type), count = static_cast<int>(list.size()) * parts, size = t.rows * t.cols;
    uint32_t bytes = bytes_of(type);
    for (int lane = 0; lane < kLanes; ++lane) {
        uint64_t base = static_cast<uint64_t>(i.imm[0]) + (i.o[8] == 32 ? c.at<uint32_t>(i.o[1])[lane] : c.at<uint64_t>(i.o[1])[lane]);
        uint64_t stride = i.o[2] >= 0 ? c.at<uint32_t>(i.o[2])[lane] : static_cast<uint64_t>(i.o[7] ? t.rows : t.cols);
        for (int e = 0; e < count; ++e) {
            int at = (lane * count + e) % size, row = at / t.cols, col = at % t.cols;
            uint64_t offset = (i.o[7] ? static_cast<uint64_t>(col) * stride + static_cast<uint64_t>(row) : static_cast<uint64_t>(row) * stride + static_cast<uint64_t>(col)) * bytes;
            char *p = i.o[8] ? shared_at(c, base + offset, bytes, Store, lane) : generic_at(c, base + offset, bytes, Store, lane);
            char *reg = c.registers + list[static_cast<size_t>(e / parts)] + lane * (type == F64 ? 8 : 4) + (e % parts) * static_cast<int>(bytes);
            if (Store) std::memcpy(p, reg, bytes);
            else std::memcpy(reg, p, bytes);
        }
    }
}

// list: D, A, B, C. o0 list, o1..o4 how many D, A, B, C, o5..o7 m, n, k; imm0 types and imm1 as for mma.
void wmma_multiply(Context &c, const Instruction &i) {
    need_whole_warp(c, "wmma.mma");
    const auto &list = c.frame->function->lists[static_cast<size_t>(i.o[0])];
    int types[4] = {static_cast<int>(i.imm[0] & 15), static_cast<int>((i.imm[0] >> 4) & 15), static_cast<int>((i.imm[0] >> 8) & 15), static_cast<int>((i.imm[0] >> 12) & 15)};
    int m = i.o[5], n = i.o[6], k = i.o[7];
    static thread_local double dense[3][32 * 32];
    const int32_t *at = list.data() + i.o[1];
    for (int which = 0; which < 3; ++which) {
        int registers = i.o[2 + which], parts = elements_in_register(types[which]), count = registers * parts;
        Tile t = tile(which, m, n, k);
        for (int lane = 0; lane < kLanes; ++lane)
            for (int e = 0; e < count; ++e) dense[which][(lane * count + e) % (t.rows * t.cols)] = element(c, at[e / parts], types[which], lane, e % parts);
        at += registers;
    }
    multiply(m, n, k, dense[0], dense[1], dense[2]);
    int parts = elements_in_register(types[3]), count = i.o[1] * parts;
    for (int lane = 0; lane < kLanes; ++lane)
        for (int e = 0; e < count; ++e) set_element(c, list[static_cast<size_t>(e / parts)], types[3], lane, e % parts, dense[2][(lane * count + e) % (m * n)], i.imm[1]);
}

// o0..o3 registers, o4 how many matrices, o5 address, o6 transposed, o7 bits of the address; imm0 displacement.
template <bool Store> void matrix_rows(Context &c, const Instruction &i) {
    need_whole_warp(c, Store ? "stmatrix" : "ldmatrix");
    uint32_t results[4][kLanes];
    for (int r = 0; r < i.o[4]; ++r) {
        char *rows[8];
        for (int k = 0; k < 8; ++k) {
            int lane = 8 * r + k;
            uint64_t a = static_cast<uint64_t>(i.imm[0]) + (i.o[7] == 32 ? c.at<uint32_t>(i.o[5])[lane] : c.at<uint64_t>(i.o[5])[lane] & ~kTagMask);
            rows[k] = shared_at(c, a, 16, Store, lane);
        }
        for (int lane = 0; lane < kLanes; ++lane)
            for (int e = 0; e < 2; ++e) {
                int row = i.o[6] ? (lane % 4) * 2 + e : lane / 4, col = i.o[6] ? lane / 4 : (lane % 4) * 2 + e;
                char *p = rows[row] + 2 * col;
                uint16_t h;
                if (Store) {
                    h = static_cast<uint16_t>(c.at<uint32_t>(i.o[r])[lane] >> (16 * e));
                    std::memcpy(p, &h, 2);
                } else {
                    std::memcpy(&h, p, 2);
                    results[r][lane] = e ? (results[r][lane] & 0xffffu) | (static_cast<uint32_t>(h) << 16) : h;
                }
            }
    }
    if (!Store)
        for (int r = 0; r < i.o[4]; ++r) blend(c.at<uint32_t>(i.o[r]), results[r], c.mask);
}

void transpose(Context &c, const Instruction &i) {
    need_whole_warp(c, "movmatrix");
    const uint32_t *a = c.at<uint32_t>(i.o[1]);
    uint16_t dense[8][8];
    for (int lane = 0; lane < kLanes; ++lane)
        for (int e = 0; e < 2; ++e) dense[lane / 4][(lane % 4) * 2 + e] = static_cast<uint16_t>(a[lane] >> (16 * e));
    uint32_t r[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
        r[lane] = dense[(lane % 4) * 2][lane / 4] | (static_cast<uint32_t>(dense[(lane % 4) * 2 + 1][lane / 4]) << 16);
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}

}  // namespace

void add_matrix_operations() {
    add_operation("mma", mma);
    add_operation("wmma.load", wmma_memory<false>);
    add_operation("wmma.store", wmma_memory<true>);
    add_operation("wmma.mma", wmma_multiply);
    add_operation("ldmatrix", matrix_rows<false>);
    add_operation("stmatrix", matrix_rows<true>);
    add_operation("movmatrix", transpose);
}

}  // namespace ca
