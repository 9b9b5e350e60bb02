// f32 and f64 arithmetic. Compiled without contraction, so that a product is rounded before it is added.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>

#include "approximate.h"
#include "machine.h"

namespace ca {
namespace {

template <class T> inline T flush(T x) { return std::fabs(x) < std::numeric_limits<T>::min() ? std::copysign(T{0}, x) : x; }
template <class T> inline T saturate(T x) { return x > 0 ? (x > 1 ? T{1} : x) : T{0}; }  // NaN and -0 become +0

template <class T> struct Add { static T f(T a, T b) { return a + b; } };
template <class T> struct Sub { static T f(T a, T b) { return a - b; } };
template <class T> struct Mul { static T f(T a, T b) { return a * b; } };
template <class T> struct Div { static T f(T a, T b) { return a / b; } };
template <class T> struct Fma { static T f(T a, T b, T x) { return std::fma(a, b, x); } };
// A NaN operand loses; -0 counts as less than +0 (PTX ISA, min and max).
template <class T> struct Min {
    static T f(T a, T b) { return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b; }
};
template <class T> struct Max {
    static T f(T a, T b) { return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b; }
};
template <class T> struct MinNan { static T f(T a, T b) { return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : Min<T>::f(a, b); } };
template <class T> struct MaxNan { static T f(T a, T b) { return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : Max<T>::f(a, b); } };
template <class T> struct Copysign { static T f(T a, T b) { return std::copysign(b, a); } };
template <class T> struct Abs { static T f(T a) { return std::fabs(a); } };
template <class T> struct Neg { static T f(T a) { return -a; } };
template <class T> struct Sqrt { static T f(T a) { return std::sqrt(a); } };
template <class T> struct Rcp { static T f(T a) { return T{1} / a; } };
template <class T> struct Rsqrt { static T f(T a) { return static_cast<T>(1.0 / std::sqrt(static_cast<double>(a))); } };
struct Ex2 { static float f(float a) { return exp2_approximate(a); } };
struct Lg2 { static float f(float a) { return log2_approximate(a); } };
struct Tanh { static float f(float a) { return tanh_approximate(a); } };
struct Sin { static float f(float a) { return static_cast<float>(std::sin(static_cast<double>(a))); } };
struct Cos { static float f(float a) { return static_cast<float>(std::cos(static_cast<double>(a))); } };

template <class T, class F, bool Ftz, bool Sat> void unary(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[1]);
    T r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        T v = F::f(Ftz ? flush(a[k]) : a[k]);
        if (Ftz) v = flush(v);
        r[k] = Sat ? saturate(v) : v;
    }
    blend(c.at<T>(i.o[0]), r, c.mask);
}
template <class T, class F, bool Ftz, bool Sat> void binary(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[1]), *b = c.at<T>(i.o[2]);
    T r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        T v = Ftz ? flush(F::f(flush(a[k]), flush(b[k]))) : F::f(a[k], b[k]);
        r[k] = Sat ? saturate(v) : v;
    }
    blend(c.at<T>(i.o[0]), r, c.mask);
}
template <class T, class F, bool Ftz, bool Sat> void ternary(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[1]), *b = c.at<T>(i.o[2]), *x = c.at<T>(i.o[3]);
    T r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        T v = Ftz ? flush(F::f(flush(a[k]), flush(b[k]), flush(x[k]))) : F::f(a[k], b[k], x[k]);
        r[k] = Sat ? saturate(v) : v;
    }
    blend(c.at<T>(i.o[0]), r, c.mask);
}

template <class F> void add_unary(const std::string &op) {
    add_operation(op + ".f32", unary<float, F, false, false>);
    add_operation(op + ".ftz.f32", unary<float, F, true, false>);
}
template <template <class> class F> void add_unsaturated(const std::string &op) {
    add_operation(op + ".f32", binary<float, F<float>, false, false>);
    add_operation(op + ".ftz.f32", binary<float, F<float>, true, false>);
    add_operation(op + ".f64", binary<double, F<double>, false, false>);
}
template <template <class> class F> void add_binary(const std::string &op) {
    add_unsaturated<F>(op);
    add_operation(op + ".sat.f32", binary<float, F<float>, false, true>);
    add_operation(op + ".ftz.sat.f32", binary<float, F<float>, true, true>);
}

// Directed rounding: imm0 is 1 toward zero, 2 down, 3 up; imm1 bit 0 flush, bit 1 saturate.
int rounding_mode(int64_t mode) { return mode == 1 ? FE_TOWARDZERO : mode == 2 ? FE_DOWNWARD : mode == 3 ? FE_UPWARD : FE_TONEAREST; }

template <class T, int Kind> __attribute__((optimize("rounding-math"), noinline)) void directed(Context &c, const Instruction &i) {
    int arguments = Kind == 4 ? 3 : Kind >= 5 ? 1 : 2;
    const T *in[3];
    for (int n = 0; n < arguments; ++n) in[n] = c.at<T>(i.o[1 + n]);
    bool ftz = i.imm[1] & 1, sat = i.imm[1] & 2;
    T r[kLanes];
    int before = std::fegetround();
    std::fesetround(rounding_mode(i.imm[0]));
    for (int k = 0; k < kLanes; ++k) {
        T read[3] = {in[0][k], arguments > 1 ? in[1][k] : T{0}, arguments > 2 ? in[2][k] : T{0}};
        // volatile keeps the arithmetic between the changes of the rounding mode.
        volatile T a = ftz ? flush(read[0]) : read[0], b = ftz ? flush(read[1]) : read[1], x = ftz ? flush(read[2]) : read[2];
        volatile T v = Kind == 0   ? a + b
                       : Kind == 1 ? a - b
                       : Kind == 2 ? a * b
                       : Kind == 3 ? a / b
                       : Kind == 4 ? std::fma(static_cast<T>(a), static_cast<T>(b), static_cast<T>(x))
                       : Kind == 5 ? std::sqrt(static_cast<T>(a))
                                   : T{1} / a;
        r[k] = v;
    }
    std::fesetround(before);
    for (int k = 0; k < kLanes; ++k) {
        if (ftz) r[k] = flush(r[k]);
        if (sat) r[k] = saturate(r[k]);
    }
    blend(c.at<T>(i.o[0]), r, c.mask);
}
template <class T> void add_directed(const std::string &t) {
    add_operation("add.directed." + t, directed<T, 0>);
    add_operation("sub.directed." + t, directed<T, 1>);
    add_operation("mul.directed." + t, directed<T, 2>);
    add_operation("div.directed." + t, directed<T, 3>);
    add_operation("fma.directed." + t, directed<T, 4>);
    add_operation("sqrt.directed." + t, directed<T, 5>);
    add_operation("rcp.directed." + t, directed<T, 6>);
}

// testp: imm0 is 0 finite, 1 infinite, 2 number, 3 notanumber, 4 normal, 5 subnormal.
template <class T> void testp(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[1]);
    uint8_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        int kind = std::fpclassify(a[k]);
        bool v[6] = {kind != FP_NAN && kind != FP_INFINITE, kind == FP_INFINITE, kind != FP_NAN, kind == FP_NAN,
                     kind == FP_NORMAL || kind == FP_ZERO, kind == FP_SUBNORMAL};
        r[k] = v[i.imm[0]];
    }
    c.predicate(i.o[0]) = (c.predicate(i.o[0]) & ~c.mask) | (pack(r) & c.mask);
}

}  // namespace

void add_float_operations() {
    add_binary<Add>("add");
    add_binary<Sub>("sub");
    add_binary<Mul>("mul");
    add_unsaturated<Div>("div");
    add_unsaturated<Min>("min");
    add_unsaturated<Max>("max");
    add_operation("min.nan.f32", binary<float, MinNan<float>, false, false>);
    add_operation("min.nan.ftz.f32", binary<float, MinNan<float>, true, false>);
    add_operation("max.nan.f32", binary<float, MaxNan<float>, false, false>);
    add_operation("max.nan.ftz.f32", binary<float, MaxNan<float>, true, false>);
    add_operation("copysign.f32", binary<float, Copysign<float>, false, false>);
    add_operation("copysign.f64", binary<double, Copysign<double>, false, false>);
    add_operation("fma.f32", ternary<float, Fma<float>, false, false>);
    add_operation("fma.ftz.f32", ternary<float, Fma<float>, true, false>);
    add_operation("fma.sat.f32", ternary<float, Fma<float>, false, true>);
    add_operation("fma.ftz.sat.f32", ternary<float, Fma<float>, true, true>);
    add_operation("fma.f64", ternary<double, Fma<double>, false, false>);
    add_unary<Abs<float>>("abs");
    add_unary<Neg<float>>("neg");
    add_unary<Sqrt<float>>("sqrt");
    add_unary<Rcp<float>>("rcp");
    add_unary<Rsqrt<float>>("rsqrt");
    add_unary<Ex2>("ex2");
    add_unary<Lg2>("lg2");
    add_unary<Sin>("sin");
    add_unary<Cos>("cos");
    add_operation("tanh.f32", unary<float, Tanh, false, false>);
    add_operation("abs.f64", unary<double, Abs<double>, false, false>);
    add_operation("neg.f64", unary<double, Neg<double>, false, false>);
    add_operation("sqrt.f64", unary<double, Sqrt<double>, false, false>);
    add_operation("rcp.f64", unary<double, Rcp<double>, false, false>);
    add_operation("rsqrt.f64", unary<double, Rsqrt<double>, false, false>);
    add_operation("rcp.ftz.f64", unary<double, Rcp<double>, true, false>);
    add_operation("rsqrt.ftz.f64", unary<double, Rsqrt<double>, true, false>);
    add_directed<float>("f32");
    add_directed<double>("f64");
    add_operation("testp.f32", testp<float>);
    add_operation("testp.f64", testp<double>);
}

}  // namespace ca
