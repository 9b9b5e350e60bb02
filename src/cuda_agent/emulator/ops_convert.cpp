// Conversions between integers, floats and the short formats.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>

#include "half.h"
#include "machine.h"

namespace ca {
namespace {

constexpr int64_t kFtz = 1, kSat = 2, kRelu = 4, kFinite = 16;

// How each source and destination format is read and written as a double.
struct F16 {
    using R = uint16_t;
    static double up(R x) { return Half::up(x); }
};
struct BF16 {
    using R = uint16_t;
    static double up(R x) { return Brain::up(x); }
};
struct F32 {
    using R = float;
    static double up(R x) { return x; }
};
struct F64 {
    using R = double;
    static double up(R x) { return x; }
};

template <class H> uint16_t short_directed(double v, int64_t mode) {
    uint16_t h = H::down(to_odd(v));
    if (mode == 0 || v != v) return h;
    auto step = [](uint16_t x, bool up) -> uint16_t {  // the neighbour toward +inf or -inf
        bool negative = x & 0x8000;
        if (!(x & 0x7fff)) return up ? 0x0001 : 0x8001;
        return static_cast<uint16_t>(negative == up ? x - 1 : x + 1);
    };
    double got = H::up(h);
    bool want_up = mode == 3 || (mode == 1 && v < 0), want_down = mode == 2 || (mode == 1 && v > 0);
    if (want_up && got < v) h = step(h, true);
    if (want_down && got > v) h = step(h, false);
    return h;
}
// satfinite: what would be infinite becomes the largest finite number.
template <class H> uint16_t short_rounded(double v, int64_t mode, int64_t flags) {
    uint16_t h = short_directed<H>(v, mode);
    constexpr uint16_t infinite = std::is_same_v<H, Half> ? 0x7c00 : 0x7f80;
    return flags & kFinite && (h & 0x7fff) == infinite ? static_cast<uint16_t>(h - 1) : h;
}
float float_directed(double v, int64_t mode) {
    auto f = static_cast<float>(v);
    if (mode == 0 || v != v) return f;
    bool want_up = mode == 3 || (mode == 1 && v < 0), want_down = mode == 2 || (mode == 1 && v > 0);
    if (want_up && static_cast<double>(f) < v) f = std::nextafter(f, std::numeric_limits<float>::infinity());
    if (want_down && static_cast<double>(f) > v) f = std::nextafter(f, -std::numeric_limits<float>::infinity());
    return f;
}
inline float flush32(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

double finish(double v, int64_t flags) {
    if (flags & kSat) v = v > 0 ? (v > 1 ? 1.0 : v) : 0.0;
    if (flags & kRelu) v = v > 0 || v != v ? v : 0.0;
    return v;
}

// imm0: 0 nearest, 1 toward zero, 2 down, 3 up; imm1: flags.
template <class S, class D> void float_to_float(Context &c, const Instruction &i) {
    const auto *a = c.at<typename S::R>(i.o[1]);
    typename D::R r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        double v = S::up(a[k]);
        if constexpr (std::is_same_v<S, F32>)
            if (i.imm[1] & kFtz) v = flush32(a[k]);
        v = finish(v, i.imm[1]);
        if constexpr (std::is_same_v<D, F16>) r[k] = short_rounded<Half>(v, i.imm[0], i.imm[1]);
        else if constexpr (std::is_same_v<D, BF16>) r[k] = short_rounded<Brain>(v, i.imm[0], i.imm[1]);
        else if constexpr (std::is_same_v<D, F32>) {
            r[k] = float_directed(v, i.imm[0]);
            if (i.imm[1] & kFtz) r[k] = flush32(r[k]);
        } else r[k] = v;
    }
    blend(c.at<typename D::R>(i.o[0]), r, c.mask);
}

double to_integral(double v, int64_t mode) {
    switch (mode) {
        case 0: return std::nearbyint(v);
        case 1: return std::trunc(v);
        case 2: return std::floor(v);
        default: return std::ceil(v);
    }
}
template <class S> void round_to_integral(Context &c, const Instruction &i) {
    const auto *a = c.at<typename S::R>(i.o[1]);
    typename S::R r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        double v = S::up(a[k]);
        if constexpr (std::is_same_v<S, F32>)
            if (i.imm[1] & kFtz) v = flush32(a[k]);
        v = finish(to_integral(v, i.imm[0]), i.imm[1]);
        if constexpr (std::is_same_v<S, F16>) r[k] = Half::down(static_cast<float>(v));
        else if constexpr (std::is_same_v<S, BF16>) r[k] = Brain::down(static_cast<float>(v));
        else r[k] = static_cast<typename S::R>(v);
    }
    blend(c.at<typename S::R>(i.o[0]), r, c.mask);
}

// Everything is clamped to the range; NaN becomes 0, or the top bit alone where the source or the result has 64 bits
// (PTX ISA, cvt, and an H200). o2: bits of the result type.
template <class S, class I> void float_to_integer(Context &c, const Instruction &i) {
    const auto *a = c.at<typename S::R>(i.o[1]);
    int bits = i.o[2];
    double low = std::is_signed_v<I> ? -std::ldexp(1.0, bits - 1) : 0.0;
    double limit = std::ldexp(1.0, std::is_signed_v<I> ? bits - 1 : bits);  // first value too large
    I top = static_cast<I>(std::numeric_limits<I>::max() >> (8 * static_cast<int>(sizeof(I)) - bits));
    I no_number = 0;
    if (std::is_same_v<S, F64> || bits == 64) no_number = static_cast<I>(std::is_signed_v<I> ? std::numeric_limits<I>::min() >> (8 * static_cast<int>(sizeof(I)) - bits) : I{1} << (bits - 1));
    I r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        double v = S::up(a[k]);
        if constexpr (std::is_same_v<S, F32>)
            if (i.imm[1] & kFtz) v = flush32(a[k]);
        v = to_integral(v, i.imm[0]);
        r[k] = v != v ? no_number : v >= limit ? top : v <= low ? static_cast<I>(low) : static_cast<I>(v);
    }
    blend(c.at<I>(i.o[0]), r, c.mask);
}

template <class I, class D> void integer_to_float(Context &c, const Instruction &i) {
    const I *a = c.at<I>(i.o[1]);
    typename D::R r[kLanes];
    int before = std::fegetround();
    static const int modes[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    if (i.imm[0]) std::fesetround(modes[i.imm[0]]);
    for (int k = 0; k < kLanes; ++k) {
        if constexpr (std::is_same_v<D, F32> || std::is_same_v<D, F64>) {
            if (i.imm[0]) {
                volatile I v = a[k];
                r[k] = static_cast<typename D::R>(v);
            } else {
                r[k] = static_cast<typename D::R>(a[k]);
            }
        } else {
            // A double has 53 bits: of the lowest ones of a long integer only keep whether any is set.
            I x = a[k];
            if constexpr (sizeof(I) == 8) {
                constexpr I large = I{1} << 53;
                if (x > large || (std::is_signed_v<I> && x < I{0} - large)) x = (x & ~I{0xfff}) | (x & 0xfff ? 0x800 : 0);
            }
            auto d = static_cast<double>(x);
            r[k] = std::is_same_v<D, F16> ? short_directed<Half>(d, i.imm[0]) : short_directed<Brain>(d, i.imm[0]);
        }
    }
    if (i.imm[0]) std::fesetround(before);
    blend(c.at<typename D::R>(i.o[0]), r, c.mask);
}

// cvt.{f16x2,bf16x2}.f32 d, a, b: a becomes the high half.
template <class H> void pack_pair(Context &c, const Instruction &i) {
    const float *a = c.at<float>(i.o[1]), *b = c.at<float>(i.o[2]);
    uint32_t r[kLanes];
    for (int k = 0; k < kLanes; ++k)
        r[k] = short_rounded<H>(finish(b[k], i.imm[1]), i.imm[0], i.imm[1]) | (static_cast<uint32_t>(short_rounded<H>(finish(a[k], i.imm[1]), i.imm[0], i.imm[1])) << 16);
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}

// imm0: 0 nearest even, 1 toward zero, 4 nearest, ties away from zero; imm1: flags.
void to_tf32(Context &c, const Instruction &i) {
    const uint32_t *a = c.at<uint32_t>(i.o[1]);
    uint32_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        uint32_t x = a[k];
        if (i.imm[1] & kRelu && x >> 31 && (x & 0x7fffffff) <= 0x7f800000) x = 0;
        bool special = (x & 0x7f800000) == 0x7f800000;
        uint32_t bump = i.imm[0] == 4 ? 0x1000 : i.imm[0] == 0 ? 0xfff + ((x >> 13) & 1) : 0;
        r[k] = (special ? x : x + bump) & 0xffffe000;
        if ((x & 0x7fffffff) > 0x7f800000) r[k] = 0x7fffe000;
    }
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}

// fp8: exponent and mantissa bits, largest finite value, encoding of NaN.
struct E4M3 {
    static constexpr int mantissa = 3, bias = 7;
    static constexpr double top = 448;
    static constexpr uint8_t largest = 0x7e, nan = 0x7f;
    static bool is_nan(uint8_t x) { return (x & 0x7f) == 0x7f; }
    static bool is_inf(uint8_t) { return false; }
};
struct E5M2 {
    static constexpr int mantissa = 2, bias = 15;
    static constexpr double top = 57344;
    static constexpr uint8_t largest = 0x7b, nan = 0x7f;
    static bool is_nan(uint8_t x) { return (x & 0x7f) > 0x7c; }
    static bool is_inf(uint8_t x) { return (x & 0x7f) == 0x7c; }
};
template <class E> double fp8_up(uint8_t x) {
    if (E::is_nan(x)) return std::numeric_limits<double>::quiet_NaN();
    double sign = x & 0x80 ? -1 : 1;
    if (E::is_inf(x)) return sign * std::numeric_limits<double>::infinity();
    int e = (x & 0x7f) >> E::mantissa, m = x & ((1 << E::mantissa) - 1);
    return sign * (e ? std::ldexp(1.0 + std::ldexp(m, -E::mantissa), e - E::bias) : std::ldexp(m, 1 - E::bias - E::mantissa));
}
template <class E> uint8_t fp8_down(double v) {  // satfinite, nearest even
    if (v != v) return E::nan;
    uint8_t sign = std::signbit(v) ? 0x80 : 0;
    double a = std::fabs(v);
    if (a > E::top) return sign | E::largest;
    int e = a == 0 ? 1 - E::bias : std::max(std::ilogb(a), 1 - E::bias);
    double scaled = std::nearbyint(std::ldexp(a, E::mantissa - e));
    auto code = static_cast<int>(scaled) + ((e + E::bias - 1) << E::mantissa);
    return static_cast<uint8_t>(sign | std::min<int>(code, E::largest));
}
template <class E> void fp8_from_f32(Context &c, const Instruction &i) {
    const float *a = c.at<float>(i.o[1]), *b = c.at<float>(i.o[2]);
    uint16_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = static_cast<uint16_t>(fp8_down<E>(finish(b[k], i.imm[1])) | (fp8_down<E>(finish(a[k], i.imm[1])) << 8));
    blend(c.at<uint16_t>(i.o[0]), r, c.mask);
}
template <class E> void fp8_from_f16(Context &c, const Instruction &i) {
    const uint32_t *a = c.at<uint32_t>(i.o[1]);
    uint16_t r[kLanes];
    for (int k = 0; k < kLanes; ++k)
        r[k] = static_cast<uint16_t>(fp8_down<E>(finish(Half::up(static_cast<uint16_t>(a[k])), i.imm[1])) | (fp8_down<E>(finish(Half::up(static_cast<uint16_t>(a[k] >> 16)), i.imm[1])) << 8));
    blend(c.at<uint16_t>(i.o[0]), r, c.mask);
}
template <class E> void fp8_to_f16(Context &c, const Instruction &i) {
    const uint16_t *a = c.at<uint16_t>(i.o[1]);
    uint32_t r[kLanes];
    for (int k = 0; k < kLanes; ++k)
        r[k] = Half::down(static_cast<float>(finish(fp8_up<E>(static_cast<uint8_t>(a[k])), i.imm[1]))) |
               (static_cast<uint32_t>(Half::down(static_cast<float>(finish(fp8_up<E>(static_cast<uint8_t>(a[k] >> 8)), i.imm[1])))) << 16);
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}

template <class S> void add_from(const std::string &s) {
    add_operation("f2f." + s + ".f16", float_to_float<S, F16>);
    add_operation("f2f." + s + ".bf16", float_to_float<S, BF16>);
    add_operation("f2f." + s + ".f32", float_to_float<S, F32>);
    add_operation("f2f." + s + ".f64", float_to_float<S, F64>);
    add_operation("round." + s, round_to_integral<S>);
    add_operation("f2i." + s + ".s32", float_to_integer<S, int32_t>);
    add_operation("f2i." + s + ".u32", float_to_integer<S, uint32_t>);
    add_operation("f2i." + s + ".s64", float_to_integer<S, int64_t>);
    add_operation("f2i." + s + ".u64", float_to_integer<S, uint64_t>);
}
template <class I> void add_integers(const std::string &t) {
    add_operation("i2f." + t + ".f16", integer_to_float<I, F16>);
    add_operation("i2f." + t + ".bf16", integer_to_float<I, BF16>);
    add_operation("i2f." + t + ".f32", integer_to_float<I, F32>);
    add_operation("i2f." + t + ".f64", integer_to_float<I, F64>);
}

}  // namespace

void add_convert_operations() {
    add_from<F16>("f16");
    add_from<BF16>("bf16");
    add_from<F32>("f32");
    add_from<F64>("f64");
    add_integers<int32_t>("s32");
    add_integers<uint32_t>("u32");
    add_integers<int64_t>("s64");
    add_integers<uint64_t>("u64");
    add_operation("pack.f16x2.f32", pack_pair<Half>);
    add_operation("pack.bf16x2.f32", pack_pair<Brain>);
    add_operation("f2tf32", to_tf32);
    add_operation("cvt.e4m3x2.f32", fp8_from_f32<E4M3>);
    add_operation("cvt.e5m2x2.f32", fp8_from_f32<E5M2>);
    add_operation("cvt.e4m3x2.f16x2", fp8_from_f16<E4M3>);
    add_operation("cvt.e5m2x2.f16x2", fp8_from_f16<E5M2>);
    add_operation("cvt.f16x2.e4m3x2", fp8_to_f16<E4M3>);
    add_operation("cvt.f16x2.e5m2x2", fp8_to_f16<E5M2>);
}

}  // namespace ca
