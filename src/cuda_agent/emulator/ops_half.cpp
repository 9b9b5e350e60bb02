// f16, bf16 and their packed pairs: computed in float or double, rounded once.
#include "half.h"

#include <algorithm>
#include <cmath>

#include "approximate.h"
#include "machine.h"

namespace ca {
namespace {

// imm0 flags of these operations.
constexpr int64_t kFtz = 1, kSat = 2, kRelu = 4, kNan = 8;

template <class H> inline float flush16(float x, int64_t flags) {
    constexpr float least_normal = std::is_same_v<H, Half> ? 6.103515625e-05f : 1.1754943508222875e-38f;
    return flags & kFtz && std::fabs(x) < least_normal ? std::copysign(0.0f, x) : x;
}
template <class H> inline uint16_t finish(double v, int64_t flags) {
    uint16_t h = H::down(to_odd(v));
    float f = H::up(h);
    if (flags & kFtz) f = flush16<H>(f, flags), h = H::down(f);
    if (flags & kSat) h = H::down(f > 0 ? (f > 1 ? 1.0f : f) : 0.0f);
    if (flags & kRelu && f <= 0) h = 0;
    return h;
}

struct Add { static double f(float a, float b, float) { return static_cast<double>(a) + b; } };
struct Sub { static double f(float a, float b, float) { return static_cast<double>(a) - b; } };
struct Mul { static double f(float a, float b, float) { return static_cast<double>(a) * b; } };
// The product is exact. Where the sum is not, its last bit is made odd, so that rounding it again goes the right way.
struct Fma {
    static double f(float a, float b, float x) {
        double p = static_cast<double>(a) * b, s = p + x, back = s - p, error = (p - (s - back)) + (x - back);
        if (error == 0 || !std::isfinite(s)) return s;
        auto bits = std::bit_cast<uint64_t>(s);
        if (bits & 1) return s;
        return std::bit_cast<double>((error > 0) == (s > 0) ? bits | 1 : bits - 1);
    }
};
struct Ex2 { static double f(float a, float, float) { return exp2_double(a); } };
struct Tanh { static double f(float a, float, float) { return std::tanh(static_cast<double>(a)); } };

template <class H, class F, int Parts, int Arguments> void arithmetic(Context &c, const Instruction &i) {
    using R = std::conditional_t<Parts == 2, uint32_t, uint16_t>;
    const R *in[3] = {c.at<R>(i.o[1]), Arguments > 1 ? c.at<R>(i.o[2]) : nullptr, Arguments > 2 ? c.at<R>(i.o[3]) : nullptr};
    R r[kLanes] = {};
    for (int p = 0; p < Parts; ++p)
        for (int k = 0; k < kLanes; ++k) {
            float v[3] = {0, 0, 0};
            for (int n = 0; n < Arguments; ++n) v[n] = flush16<H>(H::up(static_cast<uint16_t>(in[n][k] >> (16 * p))), i.imm[0]);
            r[k] = static_cast<R>(r[k] | static_cast<R>(static_cast<R>(finish<H>(F::f(v[0], v[1], v[2]), i.imm[0])) << (16 * p)));
        }
    blend(c.at<R>(i.o[0]), r, c.mask);
}

template <class H, bool Max> inline uint16_t pick(uint16_t a, uint16_t b, int64_t flags) {
    float x = flush16<H>(H::up(a), flags), y = flush16<H>(H::up(b), flags);
    if (x != x || y != y) {
        if (flags & kNan || (x != x && y != y)) return 0x7fff;
        return x != x ? H::down(y) : H::down(x);
    }
    bool first = x == y ? std::signbit(x) != Max : Max ? x > y : x < y;
    return H::down(first ? x : y);
}
template <class H, bool Max, int Parts> void choose(Context &c, const Instruction &i) {
    using R = std::conditional_t<Parts == 2, uint32_t, uint16_t>;
    const R *a = c.at<R>(i.o[1]), *b = c.at<R>(i.o[2]);
    R r[kLanes] = {};
    for (int p = 0; p < Parts; ++p)
        for (int k = 0; k < kLanes; ++k)
            r[k] = static_cast<R>(r[k] | static_cast<R>(static_cast<R>(pick<H, Max>(static_cast<uint16_t>(a[k] >> (16 * p)), static_cast<uint16_t>(b[k] >> (16 * p)), i.imm[0])) << (16 * p)));
    blend(c.at<R>(i.o[0]), r, c.mask);
}
// Sign operations act on the bits; only f16 has a form that flushes.
template <int Parts, bool Negate> void sign(Context &c, const Instruction &i) {
    using R = std::conditional_t<Parts == 2, uint32_t, uint16_t>;
    const R *a = c.at<R>(i.o[1]);
    constexpr R bit = static_cast<R>(Parts == 2 ? 0x80008000u : 0x8000u);
    R r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        R v = a[k];
        if (i.imm[0] & kFtz)
            for (int p = 0; p < Parts; ++p)
                if (!(v >> (16 * p) & 0x7c00)) v = static_cast<R>(v & ~static_cast<R>(R{0x3ff} << (16 * p)));
        r[k] = static_cast<R>(Negate ? v ^ bit : v & ~bit);
    }
    blend(c.at<R>(i.o[0]), r, c.mask);
}

// Comparisons by number: eq ne lt le gt ge equ neu ltu leu gtu geu num nan.
inline bool compare(int64_t op, float a, float b) {
    bool unordered = a != a || b != b;
    switch (op) {
        case 0: return a == b;
        case 1: return !unordered && a != b;
        case 2: return a < b;
        case 3: return a <= b;
        case 4: return a > b;
        case 5: return a >= b;
        case 6: return unordered || a == b;
        case 7: return a != b;
        case 8: return unordered || a < b;
        case 9: return unordered || a <= b;
        case 10: return unordered || a > b;
        case 11: return unordered || a >= b;
        case 12: return !unordered;
        default: return unordered;
    }
}
template <class H> inline bool compare_bits(int64_t op, int64_t flags, uint32_t a, uint32_t b, int part) {
    float x = flush16<H>(H::up(static_cast<uint16_t>(a >> (16 * part))), flags);
    float y = flush16<H>(H::up(static_cast<uint16_t>(b >> (16 * part))), flags);
    return compare(op, x, y);
}
// o0, o1 results, o2, o3 operands, o4 predicate or -1, o5 comparison, o6 flags; imm0 boolean operation, imm1 negated predicate.
// For pairs, o0 is the low half's result and o1 the high half's.
template <class H, int Parts> void setp(Context &c, const Instruction &i) {
    using R = std::conditional_t<Parts == 2, uint32_t, uint16_t>;
    const R *a = c.at<R>(i.o[2]), *b = c.at<R>(i.o[3]);
    uint32_t m[2] = {0, 0};
    for (int p = 0; p < Parts; ++p)
        for (int k = 0; k < kLanes; ++k)
            m[p] |= static_cast<uint32_t>(compare_bits<H>(i.o[5], i.o[6], a[k], b[k], p)) << k;
    if (Parts == 1) m[1] = ~m[0];
    for (int p = 0; p < 2; ++p) {
        if (i.o[4] >= 0) {
            uint32_t x = c.predicate(i.o[4]);
            if (i.imm[1]) x = ~x;
            m[p] = i.imm[0] == 1 ? m[p] & x : i.imm[0] == 2 ? m[p] | x : i.imm[0] == 3 ? m[p] ^ x : m[p];
        }
        if (i.o[p] >= 0) c.predicate(i.o[p]) = (c.predicate(i.o[p]) & ~c.mask) | (m[p] & c.mask);
    }
}
// set on pairs: 1.0 or 0.0 (imm0 = bits of one), or all ones (imm0 = 0xffff) in each half; o3 comparison, o4 flags.
template <class H> void set(Context &c, const Instruction &i) {
    const uint32_t *a = c.at<uint32_t>(i.o[1]), *b = c.at<uint32_t>(i.o[2]);
    uint32_t r[kLanes] = {};
    for (int p = 0; p < 2; ++p)
        for (int k = 0; k < kLanes; ++k)
            if (compare_bits<H>(i.o[3], i.o[4], a[k], b[k], p)) r[k] |= static_cast<uint32_t>(i.imm[0]) << (16 * p);
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}

template <class H> void add_type(const std::string &t) {
    add_operation("add." + t, arithmetic<H, Add, 1, 2>);
    add_operation("sub." + t, arithmetic<H, Sub, 1, 2>);
    add_operation("mul." + t, arithmetic<H, Mul, 1, 2>);
    add_operation("fma." + t, arithmetic<H, Fma, 1, 3>);
    add_operation("ex2." + t, arithmetic<H, Ex2, 1, 1>);
    add_operation("tanh." + t, arithmetic<H, Tanh, 1, 1>);
    add_operation("min." + t, choose<H, false, 1>);
    add_operation("max." + t, choose<H, true, 1>);
    add_operation("abs." + t, sign<1, false>);
    add_operation("neg." + t, sign<1, true>);
    add_operation("setp." + t, setp<H, 1>);
    add_operation("add." + t + "x2", arithmetic<H, Add, 2, 2>);
    add_operation("sub." + t + "x2", arithmetic<H, Sub, 2, 2>);
    add_operation("mul." + t + "x2", arithmetic<H, Mul, 2, 2>);
    add_operation("fma." + t + "x2", arithmetic<H, Fma, 2, 3>);
    add_operation("ex2." + t + "x2", arithmetic<H, Ex2, 2, 1>);
    add_operation("tanh." + t + "x2", arithmetic<H, Tanh, 2, 1>);
    add_operation("min." + t + "x2", choose<H, false, 2>);
    add_operation("max." + t + "x2", choose<H, true, 2>);
    add_operation("abs." + t + "x2", sign<2, false>);
    add_operation("neg." + t + "x2", sign<2, true>);
    add_operation("setp." + t + "x2", setp<H, 2>);
    add_operation("set." + t + "x2", set<H>);
}

}  // namespace

void add_half_operations() {
    add_type<Half>("f16");
    add_type<Brain>("bf16");
}

}  // namespace ca
