// exp2, log2 and tanh in double arithmetic, then rounded to float: within the error bounds of the hardware's
// approximations (PTX ISA: ex2.approx 2 ulp, lg2.approx 2^-22 absolute or relative, tanh.approx 2^-11 relative), and
// written so that the compiler turns the loop over lanes into vector code.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ca {

inline double exp2_double(double x) {
    double clamped = x < -1080.0 ? -1080.0 : x > 1030.0 ? 1030.0 : x;
    double n = std::nearbyint(clamped), f = clamped - n;
    // Taylor series of 2^f = e^(f ln 2) on [-1/2, 1/2]; the first term left out is below 1e-13.
    double y = f * 0.6931471805599453;
    double p = 1.0 / 479001600.0;
    p = p * y + 1.0 / 39916800.0;
    p = p * y + 1.0 / 3628800.0;
    p = p * y + 1.0 / 362880.0;
    p = p * y + 1.0 / 40320.0;
    p = p * y + 1.0 / 5040.0;
    p = p * y + 1.0 / 720.0;
    p = p * y + 1.0 / 120.0;
    p = p * y + 1.0 / 24.0;
    p = p * y + 1.0 / 6.0;
    p = p * y + 0.5;
    p = p * y + 1.0;
    p = p * y + 1.0;
    // Scale in two steps, so that results below the normal range round once.
    auto whole = static_cast<int64_t>(n);
    int64_t first = whole / 2, second = whole - first;
    double a = std::bit_cast<double>(static_cast<uint64_t>(first + 1023) << 52);
    double b = std::bit_cast<double>(static_cast<uint64_t>(second + 1023) << 52);
    double r = p * a * b;
    return x != x ? x : r;
}

inline float exp2_approximate(float x) {
    float r = static_cast<float>(exp2_double(static_cast<double>(x)));
    return x == std::numeric_limits<float>::infinity() ? x : x == -std::numeric_limits<float>::infinity() ? 0.0f : r;
}

inline float log2_approximate(float x) {
    auto bits = std::bit_cast<uint64_t>(static_cast<double>(x));  // a float's denormals are normal doubles
    auto exponent = static_cast<int64_t>((bits >> 52) & 0x7ff) - 1023;
    double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
    bool large = m > 1.4142135623730951;
    m = large ? m * 0.5 : m;
    double e = static_cast<double>(exponent + (large ? 1 : 0));
    double s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 1.0 / 17.0;
    p = p * q + 1.0 / 15.0;
    p = p * q + 1.0 / 13.0;
    p = p * q + 1.0 / 11.0;
    p = p * q + 1.0 / 9.0;
    p = p * q + 1.0 / 7.0;
    p = p * q + 1.0 / 5.0;
    p = p * q + 1.0 / 3.0;
    p = p * q + 1.0;
    double r = e + 2.0 * 1.4426950408889634 * s * p;
    float inf = std::numeric_limits<float>::infinity();
    return x != x || x < 0 ? std::numeric_limits<float>::quiet_NaN() : x == 0 ? -inf : x == inf ? inf : static_cast<float>(r);
}

inline float tanh_approximate(float x) {
    double a = std::fabs(static_cast<double>(x));
    double t = exp2_double(-2.0 * 1.4426950408889634 * (a > 40.0 ? 40.0 : a));
    double r = a < 1e-5 ? a : (1.0 - t) / (1.0 + t);
    return x != x ? x : static_cast<float>(std::copysign(r, static_cast<double>(x)));
}

}  // namespace ca
