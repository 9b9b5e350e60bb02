// The mathematical functions of CUDA C++, one result array after another.
#include <cuda_runtime.h>
#include <math_constants.h>

template <class T> __global__ void unary(const T *x, T *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T v = x[i], p = v < 0 ? -v : v;
    T results[] = {exp(v), log(p), sin(v), cos(v), tan(v), tanh(v), erf(v), erfc(v), sqrt(p), rsqrt(p), cbrt(v), exp2(v), expm1(v),
                   log2(p), log10(p), log1p(p), sinh(v), cosh(v), atan(v), asinh(v), floor(v), ceil(v), rint(v), trunc(v), lgamma(p),
                   tgamma(v < -4 ? T(2.5) : v), normcdf(v), acos(v / 100), asin(v / 100), acosh(p < 1 ? T(1.5) : p), atanh(v / 100)};
    for (int k = 0; k < static_cast<int>(sizeof results / sizeof(T)); ++k) y[k * n + i] = results[k];
}
template <class T> __global__ void binary(const T *a, const T *b, T *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T x = a[i], z = b[i];
    T results[] = {pow(x < 0 ? -x : x, z), fmod(x, z), atan2(x, z), hypot(x, z), fmin(x, z), fmax(x, z), fdim(x, z), copysign(x, z), remainder(x, z), x / z};
    for (int k = 0; k < static_cast<int>(sizeof results / sizeof(T)); ++k) y[k * n + i] = results[k];
}
__global__ void fast(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], p = fabsf(v) + 0.01f;
    float results[] = {__expf(v), __logf(p), __sinf(v), __cosf(v), __powf(p, 1.5f), __fdividef(v, p), rsqrtf(p), __frcp_rn(p), __fsqrt_rn(p),
                       __log2f(p), __exp10f(v), __saturatef(v), __fmaf_rn(v, p, 1.0f), __tanf(v), __fadd_rz(v, 1e-7f), __frsqrt_rn(p)};
    for (int k = 0; k < static_cast<int>(sizeof results / sizeof(float)); ++k) y[k * n + i] = results[k];
}
extern "C" int unary_floats(const float *x, float *y, int n, cudaStream_t stream) {
    unary<<<(n + 127) / 128, 128, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}
extern "C" int unary_doubles(const double *x, double *y, int n, cudaStream_t stream) {
    unary<<<(n + 127) / 128, 128, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}
extern "C" int binary_floats(const float *a, const float *b, float *y, int n, cudaStream_t stream) {
    binary<<<(n + 127) / 128, 128, 0, stream>>>(a, b, y, n);
    return cudaGetLastError();
}
extern "C" int binary_doubles(const double *a, const double *b, double *y, int n, cudaStream_t stream) {
    binary<<<(n + 127) / 128, 128, 0, stream>>>(a, b, y, n);
    return cudaGetLastError();
}
extern "C" int fast_floats(const float *x, float *y, int n, cudaStream_t stream) {
    fast<<<(n + 127) / 128, 128, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}
