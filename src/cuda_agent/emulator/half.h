// f16 and bf16 as bits, with conversions that round to nearest even once.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace ca {

// Round a double to float so that a second rounding to a shorter format gives the correctly rounded result
// (round to odd: the last bit says whether anything was cut off).
inline float to_odd(double d) {
    auto f = static_cast<float>(d);
    auto bits = std::bit_cast<uint32_t>(f);
    auto back = static_cast<double>(f);
    bool inexact = back != d && d == d && (bits & 0x7f800000) != 0x7f800000;
    bool away = std::fabs(back) > std::fabs(d);
    uint32_t odd = (away ? bits - 1 : bits) | 1u;
    return std::bit_cast<float>(inexact ? odd : bits);
}

struct Half {
    uint16_t bits;
    static float up(uint16_t h) {
#ifdef __F16C__
        return _cvtsh_ss(h);
#else
        uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff;
        if (e == 31) return std::bit_cast<float>(sign | 0x7f800000 | (m << 13));
        float v = e ? std::bit_cast<float>(((e + 112) << 23) | (m << 13)) : static_cast<float>(m) * 5.9604644775390625e-08f;
        return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | sign);
#endif
    }
    static uint16_t down(float f) {
        if (f != f) return 0x7fff;  // the canonical NaN
#ifdef __F16C__
        return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
        uint32_t x = std::bit_cast<uint32_t>(f), sign = (x >> 16) & 0x8000;
        x &= 0x7fffffff;
        if (x >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
        if (x < 0x38800000) {
            float v = std::bit_cast<float>(x) + 0.5f;  // aligns the denormal's last bit with the sum's
            return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(v) - 0x3f000000));
        }
        return static_cast<uint16_t>(sign | ((x - 0x38000000 + 0xfff + ((x >> 13) & 1)) >> 13));
#endif
    }
};

struct Brain {
    uint16_t bits;
    static float up(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }
    static uint16_t down(float f) {
        auto x = std::bit_cast<uint32_t>(f);
        uint32_t r = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
        return static_cast<uint16_t>(f != f ? 0x7fff : r);
    }
};

}  // namespace ca
