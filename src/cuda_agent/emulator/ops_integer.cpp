// Integer arithmetic, bit operations, comparisons, selection and moves.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "machine.h"

namespace ca {
namespace {

template <class D, class A, class F> void unary(Context &c, const Instruction &i) {
    const A *a = c.at<A>(i.o[1]);
    D r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = F::f(a[k]);
    blend(c.at<D>(i.o[0]), r, c.mask);
}
template <class D, class A, class B, class F> void binary(Context &c, const Instruction &i) {
    const A *a = c.at<A>(i.o[1]);
    const B *b = c.at<B>(i.o[2]);
    D r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = F::f(a[k], b[k]);
    blend(c.at<D>(i.o[0]), r, c.mask);
}
template <class D, class A, class B, class C, class F> void ternary(Context &c, const Instruction &i) {
    const A *a = c.at<A>(i.o[1]);
    const B *b = c.at<B>(i.o[2]);
    const C *x = c.at<C>(i.o[3]);
    D r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = F::f(a[k], b[k], x[k]);
    blend(c.at<D>(i.o[0]), r, c.mask);
}

template <class T> using U = std::make_unsigned_t<T>;
template <class T> using Wide = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

#define OP2(name, ...) template <class T> struct name { static T f(T a, T b) { __VA_ARGS__ } };
#define OP1(name, ...) template <class T> struct name { static T f(T a) { __VA_ARGS__ } };
#define OP3(name, ...) template <class T> struct name { static T f(T a, T b, T x) { __VA_ARGS__ } };

OP2(Add, return static_cast<T>(static_cast<U<T>>(a) + static_cast<U<T>>(b));)
OP2(Sub, return static_cast<T>(static_cast<U<T>>(a) - static_cast<U<T>>(b));)
OP2(MulLo, return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));)
OP2(MulHi, return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T)));)
OP2(Min, return a < b ? a : b;)
OP2(Max, return a > b ? a : b;)
OP2(And, return a & b;)
OP2(Or, return a | b;)
OP2(Xor, return a ^ b;)
OP1(Not, return static_cast<T>(~a);)
OP1(CNot, return a == 0 ? 1 : 0;)
OP1(Neg, return static_cast<T>(U<T>{0} - static_cast<U<T>>(a));)
OP1(Abs, return a < 0 ? static_cast<T>(U<T>{0} - static_cast<U<T>>(a)) : a;)
OP1(Move, return a;)
OP3(MadLo, return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b) + static_cast<uint64_t>(x));)
OP3(MadHi, return static_cast<T>(static_cast<U<T>>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T))) + static_cast<U<T>>(x));)
OP3(Sad, return static_cast<T>(static_cast<U<T>>(a < b ? static_cast<U<T>>(b) - static_cast<U<T>>(a) : static_cast<U<T>>(a) - static_cast<U<T>>(b)) + static_cast<U<T>>(x));)
// Division by zero has no defined result on a GPU; hardware gives all ones, and so do we.
OP2(Div, if (b == 0) return static_cast<T>(~T{0}); if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Neg<T>::f(a); return static_cast<T>(a / b);)
OP2(Rem, if (b == 0) return a; if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0; return static_cast<T>(a % b);)
template <class T> struct MulWide { static Wide<T> f(T a, T b) { return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b); } };
template <class T> struct MadWide {
    static Wide<T> f(T a, T b, Wide<T> x) { return static_cast<Wide<T>>(static_cast<U<Wide<T>>>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) + static_cast<U<Wide<T>>>(x)); }
};
template <class T> struct AddSat {
    static T f(T a, T b) { T r; return __builtin_add_overflow(a, b, &r) ? (b < 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max()) : r; }
};
template <class T> struct SubSat {
    static T f(T a, T b) { T r; return __builtin_sub_overflow(a, b, &r) ? (b > 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max()) : r; }
};
template <class T> struct Mul24Lo {
    static int64_t part(T a) { return std::is_signed_v<T> ? static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(a) << 8) >> 8) : static_cast<int64_t>(static_cast<uint32_t>(a) & 0xffffff); }
    static T f(T a, T b) { return static_cast<T>(part(a) * part(b)); }
};
template <class T> struct Mul24Hi { static T f(T a, T b) { return static_cast<T>((Mul24Lo<T>::part(a) * Mul24Lo<T>::part(b)) >> 16); } };
template <class T> struct Mad24Hi { static T f(T a, T b, T x) { return Add<T>::f(Mul24Hi<T>::f(a, b), x); } };
template <class T> struct Mad24HiSat { static T f(T a, T b, T x) { return AddSat<T>::f(Mul24Hi<T>::f(a, b), x); } };
template <class T> struct Mad24Lo { static T f(T a, T b, T x) { return static_cast<T>(static_cast<uint32_t>(Mul24Lo<T>::f(a, b)) + static_cast<uint32_t>(x)); } };

// Shift amounts above the width clamp to it (PTX ISA, shl and shr).
template <class T> struct Shl { static T f(T a, uint32_t n) { return n >= 8 * sizeof(T) ? 0 : static_cast<T>(static_cast<U<T>>(a) << n); } };
template <class T> struct Shr {
    static T f(T a, uint32_t n) {
        constexpr uint32_t w = 8 * sizeof(T);
        if (n >= w) return std::is_signed_v<T> ? static_cast<T>(a >> (w - 1)) : T{0};
        return static_cast<T>(a >> n);
    }
};
struct ShfL { static uint32_t f(uint32_t a, uint32_t b, uint32_t n) { return n == 0 ? b : n >= 32 ? a : (b << n) | (a >> (32 - n)); } };
struct ShfR { static uint32_t f(uint32_t a, uint32_t b, uint32_t n) { return n == 0 ? a : n >= 32 ? b : (a >> n) | (b << (32 - n)); } };
struct ShfLWrap { static uint32_t f(uint32_t a, uint32_t b, uint32_t n) { return ShfL::f(a, b, n & 31); } };
struct ShfRWrap { static uint32_t f(uint32_t a, uint32_t b, uint32_t n) { return ShfR::f(a, b, n & 31); } };

template <class T> struct Clz { static uint32_t f(T a) { return a == 0 ? 8 * sizeof(T) : sizeof(T) == 8 ? static_cast<uint32_t>(__builtin_clzll(a)) : static_cast<uint32_t>(__builtin_clz(static_cast<uint32_t>(a))); } };
template <class T> struct Popc { static uint32_t f(T a) { return static_cast<uint32_t>(__builtin_popcountll(a)); } };
template <class T> struct Brev {
    static T f(T a) { T r = 0; for (unsigned k = 0; k < 8 * sizeof(T); ++k) r = static_cast<T>((r << 1) | ((a >> k) & 1)); return r; }
};
template <class T, bool Shift> struct Bfind {
    static uint32_t f(T a) {
        U<T> v = static_cast<U<T>>(std::is_signed_v<T> && a < 0 ? ~a : a);
        uint32_t msb = v == 0 ? 0xffffffffu : 8 * sizeof(T) - 1 - Clz<U<T>>::f(v);
        return !Shift || msb == 0xffffffffu ? msb : 8 * sizeof(T) - 1 - msb;
    }
};
template <class T> struct Bfe {
    static T f(T a, uint32_t b, uint32_t x) {
        constexpr uint32_t top = 8 * sizeof(T) - 1;
        uint32_t pos = b & 0xff, len = x & 0xff;
        bool sign = std::is_signed_v<T> && len != 0 && ((static_cast<U<T>>(a) >> std::min(pos + len - 1, top)) & 1);
        U<T> r = 0;
        for (uint32_t k = 0; k <= top; ++k) {
            bool bit = k < len && pos + k <= top ? (static_cast<U<T>>(a) >> (pos + k)) & 1 : sign;
            r |= static_cast<U<T>>(bit) << k;
        }
        return static_cast<T>(r);
    }
};
template <class T> void bfi(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[1]), *b = c.at<T>(i.o[2]);
    const uint32_t *p = c.at<uint32_t>(i.o[3]), *l = c.at<uint32_t>(i.o[4]);
    T r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        uint32_t pos = p[k] & 0xff, len = l[k] & 0xff;
        T v = b[k];
        for (uint32_t n = 0; n < len && pos + n < 8 * sizeof(T); ++n)
            v = static_cast<T>((v & ~(T{1} << (pos + n))) | (((a[k] >> n) & 1) << (pos + n)));
        r[k] = v;
    }
    blend(c.at<T>(i.o[0]), r, c.mask);
}
// Shift amounts of a whole word and more empty it; in wrap mode only their low five bits count.
uint32_t ones_from(uint32_t n) { return n >= 32 ? 0 : kFull << n; }
template <bool Clamp> struct Bmsk {
    static uint32_t f(uint32_t a, uint32_t b) {
        uint32_t start = Clamp ? a : a & 31, length = Clamp ? b : b & 31;
        return ones_from(start) & ~(start >= 32 || length >= 32 ? 0 : ones_from(start + length));
    }
};
template <class T, bool Clamp> struct Szext {
    static T f(T a, uint32_t b) {
        uint32_t length = Clamp ? b : b & 31, high = ones_from(length), v = static_cast<uint32_t>(a);
        bool sign = std::is_signed_v<T> && length && length < 32 && ((v >> (length - 1)) & 1);
        return static_cast<T>(sign ? v | high : v & ~high);
    }
};
// The position of the n-th set bit at or above `base`, or below where n is negative.
struct Fns {
    static uint32_t f(uint32_t mask, uint32_t base, int32_t n) {
        if (n == 0) return base < 32 && (mask >> base) & 1 ? base : kFull;
        int left = n < 0 ? -n : n;
        for (int at = static_cast<int>(base); at >= 0 && at < 32; at += n < 0 ? -1 : 1)
            if ((mask >> at) & 1 && --left == 0) return static_cast<uint32_t>(at);
        return kFull;
    }
};
// imm0: 0 default, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16.
void prmt(Context &c, const Instruction &i) {
    const uint32_t *a = c.at<uint32_t>(i.o[1]), *b = c.at<uint32_t>(i.o[2]), *s = c.at<uint32_t>(i.o[3]);
    uint32_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        uint64_t both = (static_cast<uint64_t>(b[k]) << 32) | a[k];
        uint32_t v = 0;
        for (uint32_t n = 0; n < 4; ++n) {
            uint32_t sel, m = s[k] & 3;
            bool sign = false;
            switch (i.imm[0]) {
                case 0: sel = (s[k] >> (4 * n)) & 7, sign = (s[k] >> (4 * n)) & 8; break;
                case 1: sel = (m + n) & 7; break;
                case 2: sel = (m + 8 - n) & 7; break;
                case 3: sel = m; break;
                case 4: sel = std::max(n, m); break;
                case 5: sel = std::min(n, m); break;
                default: sel = (m & 1) * 2 + (n & 1); break;
            }
            uint32_t byte = static_cast<uint32_t>(both >> (8 * sel)) & 0xff;
            if (sign) byte = byte & 0x80 ? 0xff : 0;
            v |= byte << (8 * n);
        }
        r[k] = v;
    }
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}
void lop3(Context &c, const Instruction &i) {
    const uint32_t *a = c.at<uint32_t>(i.o[1]), *b = c.at<uint32_t>(i.o[2]), *x = c.at<uint32_t>(i.o[3]);
    uint32_t r[kLanes] = {};
    for (uint32_t n = 0; n < 8; ++n) {
        if (!((i.imm[0] >> n) & 1)) continue;
        uint32_t fa = n & 4 ? 0 : kFull, fb = n & 2 ? 0 : kFull, fx = n & 1 ? 0 : kFull;
        for (int k = 0; k < kLanes; ++k) r[k] |= (a[k] ^ fa) & (b[k] ^ fb) & (x[k] ^ fx);
    }
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}
// imm0: bit 0 a signed, bit 1 b signed; dp2a: imm1 = 1 low, 2 high half of b.
void dp(Context &c, const Instruction &i) {
    const uint32_t *a = c.at<uint32_t>(i.o[1]), *b = c.at<uint32_t>(i.o[2]), *x = c.at<uint32_t>(i.o[3]);
    uint32_t r[kLanes];
    bool as = i.imm[0] & 1, bs = i.imm[0] & 2;
    for (int k = 0; k < kLanes; ++k) {
        int64_t sum = 0;
        if (i.imm[1] == 0) {
            for (int n = 0; n < 4; ++n) {
                uint8_t p = static_cast<uint8_t>(a[k] >> (8 * n)), q = static_cast<uint8_t>(b[k] >> (8 * n));
                sum += (as ? static_cast<int8_t>(p) : static_cast<int>(p)) * (bs ? static_cast<int8_t>(q) : static_cast<int>(q));
            }
        } else {
            for (int n = 0; n < 2; ++n) {
                uint16_t p = static_cast<uint16_t>(a[k] >> (16 * n));
                uint8_t q = static_cast<uint8_t>(b[k] >> (8 * (n + (i.imm[1] == 2 ? 2 : 0))));
                sum += static_cast<int64_t>(as ? static_cast<int16_t>(p) : static_cast<int>(p)) * (bs ? static_cast<int8_t>(q) : static_cast<int>(q));
            }
        }
        r[k] = static_cast<uint32_t>(sum) + x[k];
    }
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}

// Carry chains: o4 holds the carry flags of the lanes. imm0: bit 0 carry in, bit 1 carry out.
template <class T, int Kind> void carry(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[1]), *b = c.at<T>(i.o[2]);
    uint32_t &flags = c.predicate(i.o[4]);
    uint32_t out = 0;
    T r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        unsigned in = i.imm[0] & 1 ? (flags >> k) & 1 : 0;
        unsigned __int128 v;
        if (Kind == 0) {
            v = static_cast<unsigned __int128>(a[k]) + b[k] + in;
        } else if (Kind == 1) {
            v = static_cast<unsigned __int128>(a[k]) - b[k] - in;
        } else {
            T product = Kind == 2 ? MulLo<T>::f(a[k], b[k]) : MulHi<T>::f(a[k], b[k]);
            v = static_cast<unsigned __int128>(product) + c.at<T>(i.o[3])[k] + in;
        }
        r[k] = static_cast<T>(v);
        if ((v >> (8 * sizeof(T))) & 1) out |= 1u << k;
    }
    if (i.imm[0] & 2) flags = (flags & ~c.mask) | (out & c.mask);
    blend(c.at<T>(i.o[0]), r, c.mask);
}

// setp: o0 and o1 (or -1) results, o2 and o3 operands, o4 predicate or -1.
// imm0: 0 none, 1 and, 2 or, 3 xor; imm1: the predicate is negated.
void finish_setp(Context &c, const Instruction &i, uint32_t p) {
    uint32_t q = ~p;
    if (i.o[4] >= 0) {
        uint32_t x = c.predicate(i.o[4]);
        if (i.imm[1]) x = ~x;
        if (i.imm[0] == 1) p &= x, q &= x;
        if (i.imm[0] == 2) p |= x, q |= x;
        if (i.imm[0] == 3) p ^= x, q ^= x;
    }
    if (i.o[0] >= 0) c.predicate(i.o[0]) = (c.predicate(i.o[0]) & ~c.mask) | (p & c.mask);
    if (i.o[1] >= 0) c.predicate(i.o[1]) = (c.predicate(i.o[1]) & ~c.mask) | (q & c.mask);
}
template <class T, class F> void setp(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[2]), *b = c.at<T>(i.o[3]);
    uint8_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = F::f(a[k], b[k]);
    finish_setp(c, i, pack(r));
}
template <class T> struct Eq { static bool f(T a, T b) { return a == b; } };
template <class T> struct Ne { static bool f(T a, T b) { return a != b; } };
template <class T> struct Lt { static bool f(T a, T b) { return a < b; } };
template <class T> struct Le { static bool f(T a, T b) { return a <= b; } };
template <class T> struct Gt { static bool f(T a, T b) { return a > b; } };
template <class T> struct Ge { static bool f(T a, T b) { return a >= b; } };
// Ordered != and the unordered forms, for floats.
template <class T> struct NeOrdered { static bool f(T a, T b) { return a < b || a > b; } };
template <class T> struct Equ { static bool f(T a, T b) { return !(a < b || a > b); } };
template <class T> struct Neu { static bool f(T a, T b) { return !(a == b); } };
template <class T> struct Ltu { static bool f(T a, T b) { return !(a >= b); } };
template <class T> struct Leu { static bool f(T a, T b) { return !(a > b); } };
template <class T> struct Gtu { static bool f(T a, T b) { return !(a <= b); } };
template <class T> struct Geu { static bool f(T a, T b) { return !(a < b); } };
template <class T> struct Num { static bool f(T a, T b) { return a == a && b == b; } };
template <class T> struct Nan { static bool f(T a, T b) { return !(a == a && b == b); } };

template <class T> void add_integer_compares(const std::string &t) {
    add_operation("setp.eq." + t, setp<T, Eq<T>>);
    add_operation("setp.ne." + t, setp<T, Ne<T>>);
    add_operation("setp.lt." + t, setp<T, Lt<T>>);
    add_operation("setp.le." + t, setp<T, Le<T>>);
    add_operation("setp.gt." + t, setp<T, Gt<T>>);
    add_operation("setp.ge." + t, setp<T, Ge<T>>);
}
template <class T> void add_float_compares(const std::string &t) {
    add_operation("setp.eq." + t, setp<T, Eq<T>>);
    add_operation("setp.ne." + t, setp<T, NeOrdered<T>>);
    add_operation("setp.lt." + t, setp<T, Lt<T>>);
    add_operation("setp.le." + t, setp<T, Le<T>>);
    add_operation("setp.gt." + t, setp<T, Gt<T>>);
    add_operation("setp.ge." + t, setp<T, Ge<T>>);
    add_operation("setp.equ." + t, setp<T, Equ<T>>);
    add_operation("setp.neu." + t, setp<T, Neu<T>>);
    add_operation("setp.ltu." + t, setp<T, Ltu<T>>);
    add_operation("setp.leu." + t, setp<T, Leu<T>>);
    add_operation("setp.gtu." + t, setp<T, Gtu<T>>);
    add_operation("setp.geu." + t, setp<T, Geu<T>>);
    add_operation("setp.num." + t, setp<T, Num<T>>);
    add_operation("setp.nan." + t, setp<T, Nan<T>>);
}

template <class T> void selp(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[1]), *b = c.at<T>(i.o[2]);
    uint32_t p = c.predicate(i.o[3]);
    if (i.imm[0]) p = ~p;
    T r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = (p >> k) & 1 ? a[k] : b[k];
    blend(c.at<T>(i.o[0]), r, c.mask);
}
template <class T, class S> void slct(Context &c, const Instruction &i) {
    const T *a = c.at<T>(i.o[1]), *b = c.at<T>(i.o[2]);
    const S *s = c.at<S>(i.o[3]);
    T r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = s[k] >= 0 ? a[k] : b[k];
    blend(c.at<T>(i.o[0]), r, c.mask);
}

// Predicate logic; imm0: bit 0 negates a, bit 1 negates b.
template <int Kind> void predicate_logic(Context &c, const Instruction &i) {
    uint32_t a = c.predicate(i.o[1]), b = i.o[2] >= 0 ? c.predicate(i.o[2]) : 0;
    if (i.imm[0] & 1) a = ~a;
    if (i.imm[0] & 2) b = ~b;
    uint32_t r = Kind == 0 ? a & b : Kind == 1 ? a | b : Kind == 2 ? a ^ b : Kind == 3 ? ~a : a;
    c.predicate(i.o[0]) = (c.predicate(i.o[0]) & ~c.mask) | (r & c.mask);
}

// mov {a, b, ...} = d and back.
template <class W, class P, int N> void pack_parts(Context &c, const Instruction &i) {
    W r[kLanes] = {};
    for (int n = 0; n < N; ++n) {
        const P *p = c.at<P>(i.o[1 + n]);
        for (int k = 0; k < kLanes; ++k) r[k] = static_cast<W>(r[k] | (static_cast<W>(p[k]) << (8 * sizeof(P) * static_cast<unsigned>(n))));
    }
    blend(c.at<W>(i.o[0]), r, c.mask);
}
template <class W, class P, int N> void unpack_parts(Context &c, const Instruction &i) {
    W w[kLanes];
    std::memcpy(w, c.at<W>(i.o[8]), sizeof w);
    for (int n = 0; n < N; ++n) {
        if (i.o[n] < 0) continue;
        P r[kLanes];
        for (int k = 0; k < kLanes; ++k) r[k] = static_cast<P>(w[k] >> (8 * sizeof(P) * static_cast<unsigned>(n)));
        blend(c.at<P>(i.o[n]), r, c.mask);
    }
}

// Take the low bits of a register as M and widen them to the destination register.
template <class M, class S, class D> void extend(Context &c, const Instruction &i) {
    const S *a = c.at<S>(i.o[1]);
    D r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        M m = static_cast<M>(a[k]);
        r[k] = static_cast<D>(static_cast<std::conditional_t<std::is_signed_v<M>, std::make_signed_t<D>, D>>(m));
    }
    blend(c.at<D>(i.o[0]), r, c.mask);
}
// Registers narrower than M are no source of it, and no place for it.
template <class M> void add_extend(const std::string &m) {
    if constexpr (sizeof(M) <= 2) {
        add_operation("ext." + m + ".r16.r16", extend<M, uint16_t, uint16_t>);
        add_operation("ext." + m + ".r16.r32", extend<M, uint16_t, uint32_t>);
        add_operation("ext." + m + ".r16.r64", extend<M, uint16_t, uint64_t>);
        add_operation("ext." + m + ".r32.r16", extend<M, uint32_t, uint16_t>);
        add_operation("ext." + m + ".r64.r16", extend<M, uint64_t, uint16_t>);
    }
    if constexpr (sizeof(M) <= 4) {
        add_operation("ext." + m + ".r32.r32", extend<M, uint32_t, uint32_t>);
        add_operation("ext." + m + ".r32.r64", extend<M, uint32_t, uint64_t>);
        add_operation("ext." + m + ".r64.r32", extend<M, uint64_t, uint32_t>);
    }
    add_operation("ext." + m + ".r64.r64", extend<M, uint64_t, uint64_t>);
}
// Clamp a 64-bit value to the range of D: signed source (S) or unsigned.
template <class S> void clamp(Context &c, const Instruction &i) {
    const S *a = c.at<S>(i.o[1]);
    S low = static_cast<S>(i.imm[0]), high = static_cast<S>(i.imm[1]);
    S r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = std::min(std::max(a[k], low), high);
    blend(c.at<S>(i.o[0]), r, c.mask);
}

// Two 16-bit halves in a 32-bit register.
template <class T, class F> void halves(Context &c, const Instruction &i) {
    const uint32_t *a = c.at<uint32_t>(i.o[1]), *b = c.at<uint32_t>(i.o[2]);
    uint32_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        uint16_t low = static_cast<uint16_t>(F::f(static_cast<T>(a[k]), static_cast<T>(b[k])));
        uint16_t high = static_cast<uint16_t>(F::f(static_cast<T>(a[k] >> 16), static_cast<T>(b[k] >> 16)));
        r[k] = low | (static_cast<uint32_t>(high) << 16);
    }
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}

template <class T> void add_signed_or_not(const std::string &t) {
    add_operation("mul.hi." + t, binary<T, T, T, MulHi<T>>);
    add_operation("mad.hi." + t, ternary<T, T, T, T, MadHi<T>>);
    add_operation("div." + t, binary<T, T, T, Div<T>>);
    add_operation("rem." + t, binary<T, T, T, Rem<T>>);
    add_operation("min." + t, binary<T, T, T, Min<T>>);
    add_operation("max." + t, binary<T, T, T, Max<T>>);
    add_operation("shr." + t, binary<T, T, uint32_t, Shr<T>>);
    add_operation("sad." + t, ternary<T, T, T, T, Sad<T>>);
    if constexpr (sizeof(T) <= 4) {
        add_operation("mul.wide." + t, binary<Wide<T>, T, T, MulWide<T>>);
        add_operation("mad.wide." + t, ternary<Wide<T>, T, T, Wide<T>, MadWide<T>>);
    }
    if constexpr (sizeof(T) >= 4) {
        add_operation("bfe." + t, ternary<T, T, uint32_t, uint32_t, Bfe<T>>);
        add_operation("bfind." + t, unary<uint32_t, T, Bfind<T, false>>);
        add_operation("bfind.shiftamt." + t, unary<uint32_t, T, Bfind<T, true>>);
    }
    if constexpr (std::is_signed_v<T>) {
        add_operation("abs." + t, unary<T, T, Abs<T>>);
        add_operation("neg." + t, unary<T, T, Neg<T>>);
    }
    add_integer_compares<T>(t);
}
template <class T> void add_bits(const std::string &t) {
    add_operation("add." + t, binary<T, T, T, Add<T>>);
    add_operation("sub." + t, binary<T, T, T, Sub<T>>);
    add_operation("mul.lo." + t, binary<T, T, T, MulLo<T>>);
    add_operation("mad.lo." + t, ternary<T, T, T, T, MadLo<T>>);
    add_operation("and." + t, binary<T, T, T, And<T>>);
    add_operation("or." + t, binary<T, T, T, Or<T>>);
    add_operation("xor." + t, binary<T, T, T, Xor<T>>);
    add_operation("not." + t, unary<T, T, Not<T>>);
    add_operation("cnot." + t, unary<T, T, CNot<T>>);
    add_operation("mov." + t, unary<T, T, Move<T>>);
    add_operation("shl." + t, binary<T, T, uint32_t, Shl<T>>);
    add_operation("selp." + t, selp<T>);
    add_operation("slct." + t + ".s32", slct<T, int32_t>);
    add_operation("slct." + t + ".f32", slct<T, float>);
}
template <class T> void add_carries(const std::string &t) {
    add_operation("add.carry." + t, carry<T, 0>);
    add_operation("sub.carry." + t, carry<T, 1>);
    add_operation("mad.lo.carry." + t, carry<T, 2>);
    add_operation("mad.hi.carry." + t, carry<T, 3>);
}

}  // namespace

void add_integer_operations() {
    add_bits<uint16_t>("b16");
    add_bits<uint32_t>("b32");
    add_bits<uint64_t>("b64");
    add_signed_or_not<int16_t>("s16");
    add_signed_or_not<uint16_t>("u16");
    add_signed_or_not<int32_t>("s32");
    add_signed_or_not<uint32_t>("u32");
    add_signed_or_not<int64_t>("s64");
    add_signed_or_not<uint64_t>("u64");
    add_float_compares<float>("f32");
    add_float_compares<double>("f64");
    add_operation("add.sat.s32", binary<int32_t, int32_t, int32_t, AddSat<int32_t>>);
    add_operation("sub.sat.s32", binary<int32_t, int32_t, int32_t, SubSat<int32_t>>);
    add_operation("mul24.lo.s32", binary<int32_t, int32_t, int32_t, Mul24Lo<int32_t>>);
    add_operation("mul24.lo.u32", binary<uint32_t, uint32_t, uint32_t, Mul24Lo<uint32_t>>);
    add_operation("mul24.hi.s32", binary<int32_t, int32_t, int32_t, Mul24Hi<int32_t>>);
    add_operation("mul24.hi.u32", binary<uint32_t, uint32_t, uint32_t, Mul24Hi<uint32_t>>);
    add_operation("mad24.lo.s32", ternary<int32_t, int32_t, int32_t, int32_t, Mad24Lo<int32_t>>);
    add_operation("mad24.lo.u32", ternary<uint32_t, uint32_t, uint32_t, uint32_t, Mad24Lo<uint32_t>>);
    add_operation("mad24.hi.s32", ternary<int32_t, int32_t, int32_t, int32_t, Mad24Hi<int32_t>>);
    add_operation("mad24.hi.u32", ternary<uint32_t, uint32_t, uint32_t, uint32_t, Mad24Hi<uint32_t>>);
    add_operation("mad24.hi.sat.s32", ternary<int32_t, int32_t, int32_t, int32_t, Mad24HiSat<int32_t>>);
    add_operation("shf.l.clamp.b32", ternary<uint32_t, uint32_t, uint32_t, uint32_t, ShfL>);
    add_operation("shf.r.clamp.b32", ternary<uint32_t, uint32_t, uint32_t, uint32_t, ShfR>);
    add_operation("shf.l.wrap.b32", ternary<uint32_t, uint32_t, uint32_t, uint32_t, ShfLWrap>);
    add_operation("shf.r.wrap.b32", ternary<uint32_t, uint32_t, uint32_t, uint32_t, ShfRWrap>);
    add_operation("bmsk.clamp.b32", binary<uint32_t, uint32_t, uint32_t, Bmsk<true>>);
    add_operation("bmsk.wrap.b32", binary<uint32_t, uint32_t, uint32_t, Bmsk<false>>);
    add_operation("szext.clamp.s32", binary<int32_t, int32_t, uint32_t, Szext<int32_t, true>>);
    add_operation("szext.wrap.s32", binary<int32_t, int32_t, uint32_t, Szext<int32_t, false>>);
    add_operation("szext.clamp.u32", binary<uint32_t, uint32_t, uint32_t, Szext<uint32_t, true>>);
    add_operation("szext.wrap.u32", binary<uint32_t, uint32_t, uint32_t, Szext<uint32_t, false>>);
    add_operation("fns.b32", ternary<uint32_t, uint32_t, uint32_t, int32_t, Fns>);
    add_operation("clz.b32", unary<uint32_t, uint32_t, Clz<uint32_t>>);
    add_operation("clz.b64", unary<uint32_t, uint64_t, Clz<uint64_t>>);
    add_operation("popc.b32", unary<uint32_t, uint32_t, Popc<uint32_t>>);
    add_operation("popc.b64", unary<uint32_t, uint64_t, Popc<uint64_t>>);
    add_operation("brev.b32", unary<uint32_t, uint32_t, Brev<uint32_t>>);
    add_operation("brev.b64", unary<uint64_t, uint64_t, Brev<uint64_t>>);
    add_operation("bfi.b32", bfi<uint32_t>);
    add_operation("bfi.b64", bfi<uint64_t>);
    add_operation("prmt.b32", prmt);
    add_operation("lop3.b32", lop3);
    add_operation("dp", dp);
    add_carries<uint32_t>("b32");
    add_carries<uint64_t>("b64");
    add_operation("and.pred", predicate_logic<0>);
    add_operation("or.pred", predicate_logic<1>);
    add_operation("xor.pred", predicate_logic<2>);
    add_operation("not.pred", predicate_logic<3>);
    add_operation("mov.pred", predicate_logic<4>);
    add_operation("pack.b32.b16", pack_parts<uint32_t, uint16_t, 2>);
    add_operation("pack.b64.b32", pack_parts<uint64_t, uint32_t, 2>);
    add_operation("pack.b64.b16", pack_parts<uint64_t, uint16_t, 4>);
    add_operation("unpack.b32.b16", unpack_parts<uint32_t, uint16_t, 2>);
    add_operation("unpack.b64.b32", unpack_parts<uint64_t, uint32_t, 2>);
    add_operation("unpack.b64.b16", unpack_parts<uint64_t, uint16_t, 4>);
    add_extend<int8_t>("s8");
    add_extend<uint8_t>("u8");
    add_extend<int16_t>("s16");
    add_extend<uint16_t>("u16");
    add_extend<int32_t>("s32");
    add_extend<uint32_t>("u32");
    add_extend<uint64_t>("u64");
    add_operation("clamp.s64", clamp<int64_t>);
    add_operation("clamp.u64", clamp<uint64_t>);
    add_operation("add.u16x2", halves<uint16_t, Add<uint16_t>>);
    add_operation("min.s16x2", halves<int16_t, Min<int16_t>>);
    add_operation("max.s16x2", halves<int16_t, Max<int16_t>>);
    add_operation("min.u16x2", halves<uint16_t, Min<uint16_t>>);
    add_operation("max.u16x2", halves<uint16_t, Max<uint16_t>>);
}

}  // namespace ca
