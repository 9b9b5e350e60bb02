// Atomic operations: truly atomic on global memory, where blocks run on several threads.
#include <algorithm>
#include <type_traits>

#include "half.h"
#include "machine.h"

namespace ca {
namespace {

enum class Op { Add, Min, Max, And, Or, Xor, Exch, Cas, Inc, Dec };

template <class T> struct Bits {
    using type = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
};

// Pairs of halves as 32 bits.
template <class H> struct Pair {
    uint32_t bits;
};
template <class H> struct Single {
    uint16_t bits;
};

template <class H> uint16_t add_short(uint16_t a, uint16_t b) { return H::down(to_odd(static_cast<double>(H::up(a)) + H::up(b))); }
template <class H> uint16_t pick_short(uint16_t a, uint16_t b, bool max) {
    float x = H::up(a), y = H::up(b);
    if (x != x) return b;
    if (y != y) return a;
    return max ? (x < y ? b : a) : (y < x ? b : a);
}
template <class H> Single<H> combine(Op op, Single<H> a, Single<H> b) {
    return {op == Op::Add ? add_short<H>(a.bits, b.bits) : op == Op::Exch ? b.bits : pick_short<H>(a.bits, b.bits, op == Op::Max)};
}
template <class H> Pair<H> combine(Op op, Pair<H> a, Pair<H> b) {
    auto low = combine<H>(op, Single<H>{static_cast<uint16_t>(a.bits)}, Single<H>{static_cast<uint16_t>(b.bits)});
    auto high = combine<H>(op, Single<H>{static_cast<uint16_t>(a.bits >> 16)}, Single<H>{static_cast<uint16_t>(b.bits >> 16)});
    return {low.bits | (static_cast<uint32_t>(high.bits) << 16)};
}
template <class T> std::enable_if_t<std::is_arithmetic_v<T>, T> combine(Op op, T a, T b) {
    switch (op) {
        case Op::Add:
            if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
            else return a + b;
        case Op::Min: return b < a || a != a ? b : a;
        case Op::Max: return a < b || a != a ? b : a;
        case Op::Exch: return b;
        default: break;
    }
    if constexpr (std::is_integral_v<T>) {
        switch (op) {
            case Op::And: return a & b;
            case Op::Or: return a | b;
            case Op::Xor: return a ^ b;
            case Op::Inc: return a >= b ? T{0} : static_cast<T>(a + 1);
            case Op::Dec: return a == 0 || a > b ? b : static_cast<T>(a - 1);
            default: break;
        }
    }
    return b;
}

// o0 result or -1, o1 address register or -1 (absolute), o2 operand, o3 second operand of cas; imm0 displacement.
template <class T, Op op, int Space> void atomic(Context &c, const Instruction &i) {
    using B = typename Bits<T>::type;
    const B *operand = c.at<B>(i.o[2]);
    const B *swap = op == Op::Cas ? c.at<B>(i.o[3]) : nullptr;
    B r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        uint64_t address = static_cast<uint64_t>(i.imm[0]);
        if (i.o[1] >= 0) address += Space == 32 ? c.at<uint32_t>(i.o[1])[k] : c.at<uint64_t>(i.o[1])[k];
        char *at = Space == 0 ? generic_at(c, address, sizeof(B), true, k) : shared_at(c, address, sizeof(B), true, k);
        auto *p = reinterpret_cast<B *>(at);
        B old = __atomic_load_n(p, __ATOMIC_RELAXED);
        if (op == Op::Cas) {
            B expected = operand[k];
            old = expected;
            if (!__atomic_compare_exchange_n(p, &expected, swap[k], false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) old = expected;
        } else {
            B fresh;
            do {
                fresh = std::bit_cast<B>(combine(op, std::bit_cast<T>(old), std::bit_cast<T>(operand[k])));
            } while (!__atomic_compare_exchange_n(p, &old, fresh, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
        }
        r[k] = old;
    }
    if (i.o[0] >= 0) blend(c.at<B>(i.o[0]), r, c.mask);
}

template <class T, Op op> void add(const std::string &name) {
    add_operation("atom.global." + name, atomic<T, op, 0>);
    add_operation("atom.shared.a32." + name, atomic<T, op, 32>);
    add_operation("atom.shared.a64." + name, atomic<T, op, 64>);
}
// The signed types differ from the unsigned ones only in their order.
template <class T> void add_ordered(const std::string &t) {
    add<T, Op::Min>("min." + t);
    add<T, Op::Max>("max." + t);
}
template <class T> void add_bits(const std::string &t) {
    add<T, Op::Add>("add." + t);
    add<T, Op::And>("and." + t);
    add<T, Op::Or>("or." + t);
    add<T, Op::Xor>("xor." + t);
    add<T, Op::Exch>("exch." + t);
    add<T, Op::Cas>("cas." + t);
}
// The least and largest of halves exist only as vectors in global memory.
template <class T> void add_short(const std::string &t) {
    add<T, Op::Add>("add." + t);
    add_operation("atom.global.min." + t, atomic<T, Op::Min, 0>);
    add_operation("atom.global.max." + t, atomic<T, Op::Max, 0>);
}

}  // namespace

void add_atomic_operations() {
    add_bits<uint32_t>("u32");
    add_bits<uint64_t>("u64");
    add<int32_t, Op::Add>("add.s32");
    add_ordered<uint32_t>("u32");
    add_ordered<int32_t>("s32");
    add_ordered<uint64_t>("u64");
    add_ordered<int64_t>("s64");
    add<uint32_t, Op::Inc>("inc.u32");
    add<uint32_t, Op::Dec>("dec.u32");
    add<uint16_t, Op::Cas>("cas.u16");
    add<float, Op::Add>("add.f32");
    add<double, Op::Add>("add.f64");
    add_short<Single<Half>>("f16");
    add_short<Single<Brain>>("bf16");
    add_short<Pair<Half>>("f16x2");
    add_short<Pair<Brain>>("bf16x2");
}

}  // namespace ca
