"""CUDA C++ for scalar operations and element types: one line each, and the device functions they call."""

from __future__ import annotations

import math

STORAGE = {
    "float32": "float",
    "float64": "double",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}
"""C type of one stored element, by torch's dtype name."""

COMPUTE = {
    "float32": "float",
    "float64": "double",
    "float16": "float",
    "bfloat16": "float",
    "int64": "long long",
    "int32": "int",
    "int16": "int",
    "int8": "int",
    "uint8": "int",
    "bool": "bool",
}
"""C type in which it is computed: half types are widened on load and rounded once, on store."""

ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&&",
    "or": "||",
    "xor": "!=",
    "bit_and": "&",
    "bit_or": "|",
    "bit_xor": "^",
}
"""Operations written between their operands."""

CALLS = {
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "log1p": "log1p",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "tanh": "tanh",
    "sinh": "sinh",
    "cosh": "cosh",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "atan2": "atan2",
    "erf": "erf",
    "erfc": "erfc",
    "pow": "pow",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "nearbyint",
    "fmod": "fmod",
    "hypot": "hypot",
    "isnan": "isnan",
    "isinf": "isinf",
}
"""Functions of CUDA's own maths library; float and double overloads, no fast-math variants."""

DEVICE_FUNCTIONS = {
    "maximum": """// NaN wins, as in torch. For floats that is one instruction, which C++ has no name for.
template <typename T>
__device__ __forceinline__ T maximum(T a, T b) {
  return (a > b || a != a) ? a : b;
}
__device__ __forceinline__ float maximum(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}""",
    "minimum": """// NaN wins, as in torch. For floats that is one instruction, which C++ has no name for.
template <typename T>
__device__ __forceinline__ T minimum(T a, T b) {
  return (a < b || a != a) ? a : b;
}
__device__ __forceinline__ float minimum(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}""",
    "clamp": """// NaN passes through, as in torch.
template <typename T>
__device__ __forceinline__ T clamp(T x, T low, T high) {
  return x < low ? low : (x > high ? high : x);
}""",
    "exp_of_nonpositive": """// The fast exponential is off by up to 2 + 1.173 |x| units in the last place (CUDA C++ programming guide), and for x <= 0
// exp(x) falls faster than that grows: the absolute error stays below 2.4e-7.
__device__ __forceinline__ float exp_of_nonpositive(float x) {
  return __expf(x);
}
__device__ __forceinline__ double exp_of_nonpositive(double x) {
  return exp(x);
}""",
    "sign": """template <typename T>
__device__ __forceinline__ T sign(T x) {
  return static_cast<T>((x > T(0)) - (x < T(0)));
}""",
    "square": """template <typename T>
__device__ __forceinline__ T square(T x) {
  return x * x;
}""",
    "cube": """template <typename T>
__device__ __forceinline__ T cube(T x) {
  return x * x * x;
}""",
    "reciprocal": """template <typename T>
__device__ __forceinline__ T reciprocal(T x) {
  return T(1) / x;
}""",
    "relu": """// NaN passes through, as in torch.
template <typename T>
__device__ __forceinline__ T relu(T x) {
  return x < T(0) ? T(0) : x;
}""",
    "sigmoid": """template <typename T>
__device__ __forceinline__ T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}""",
    "silu": """template <typename T>
__device__ __forceinline__ T silu(T x) {
  return x / (T(1) + exp(-x));
}""",
    "gelu": """template <typename T>
__device__ __forceinline__ T gelu(T x) {
  return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)));
}""",
    "gelu_tanh": """template <typename T>
__device__ __forceinline__ T gelu_tanh(T x) {
  const T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
  return T(0.5) * x * (T(1) + tanh(inner));
}""",
    "softplus": """// Linear above the threshold, where exp would overflow.
template <typename T>
__device__ __forceinline__ T softplus(T x, T beta, T threshold) {
  return x * beta > threshold ? x : log1p(exp(x * beta)) / beta;
}""",
    "mish": """// tanh(log1p(e)) = e (e + 2) / (e (e + 2) + 2): one exp instead of exp, log and tanh.
template <typename T>
__device__ __forceinline__ T mish(T x) {
  if (x > T(20)) return x;
  const T e = exp(x);
  const T n = e * (e + T(2));
  return x * (n / (n + T(2)));
}""",
    "hardswish": """template <typename T>
__device__ __forceinline__ T hardswish(T x) {
  const T gate = x + T(3);
  return x * (gate < T(0) ? T(0) : (gate > T(6) ? T(6) : gate)) / T(6);
}""",
    "hardsigmoid": """template <typename T>
__device__ __forceinline__ T hardsigmoid(T x) {
  const T gate = x + T(3);
  return (gate < T(0) ? T(0) : (gate > T(6) ? T(6) : gate)) / T(6);
}""",
    "elu": """template <typename T>
__device__ __forceinline__ T elu(T x, T alpha, T scale, T input_scale) {
  return x > T(0) ? scale * x : scale * alpha * expm1(input_scale * x);
}""",
    "leaky_relu": """template <typename T>
__device__ __forceinline__ T leaky_relu(T x, T slope) {
  return x > T(0) ? x : slope * x;
}""",
    "log_sigmoid": """// min(x, 0) - log1p(exp(-|x|)) never overflows.
template <typename T>
__device__ __forceinline__ T log_sigmoid(T x) {
  return (x < T(0) ? x : T(0)) - log1p(exp(-fabs(x)));
}""",
    "remainder": """// The result has the divisor's sign, as in torch and Python.
template <typename T>
__device__ __forceinline__ T remainder_of(T a, T b) {
  const T r = fmod(a, b);
  return (r != T(0) && (r < T(0)) != (b < T(0))) ? r + b : r;
}
__device__ __forceinline__ long long remainder_of(long long a, long long b) {
  const long long r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}
__device__ __forceinline__ int remainder_of(int a, int b) {
  const int r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}""",
    "floor_divide": """// Rounds towards minus infinity, as in torch and Python.
template <typename T>
__device__ __forceinline__ T floor_divide(T a, T b) {
  const T q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}""",
    "integer_power": """template <typename T>
__device__ __forceinline__ T integer_power(T base, int exponent) {
  T result = 1;
  for (int i = 0; i < exponent; ++i) result *= base;
  return result;
}""",
}
"""Device functions emitted only into kernels that call them."""

_RENAMED = {"remainder": "remainder_of"}


def render(op: str, operands: list[str], compute: str, parameters: tuple[float, ...]) -> tuple[str, str | None]:
    """Return the C++ of one operation and the device function it needs.

    `operands` are names or literals; `compute` is the C type of the result.

    Raises:
        KeyError: no such operation.
    """
    if op in INFIX:
        return f"{operands[0]} {INFIX[op]} {operands[1]}", None
    if op in CALLS:
        return f"{CALLS[op]}({', '.join(operands)})", None
    if op == "neg":
        return f"-{operands[0]}", None
    if op == "not":
        return f"!{operands[0]}", None
    if op == "bit_not":
        return f"~{operands[0]}", None
    if op == "abs":
        return (f"fabs({operands[0]})" if compute in ("float", "double") else f"abs({operands[0]})"), None
    if op == "where":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}", None
    if op == "cast":
        if compute == "bool":
            return f"{operands[0]} != 0", None
        return f"static_cast<{compute}>({operands[0]})", None
    if op == "copy":
        return operands[0], None
    if op not in DEVICE_FUNCTIONS:
        raise KeyError(op)
    arguments = operands + [literal(value, compute) for value in parameters]
    return f"{_RENAMED.get(op, op)}({', '.join(arguments)})", op


def literal(value: float | int | bool, compute: str) -> str:
    """Return a C++ literal of the given compute type."""
    if compute == "bool":
        return "true" if value else "false"
    if compute in ("int", "long long"):
        number = int(value)
        if number == -(2**63):
            return "(-9223372036854775807LL - 1)"
        suffix = "LL" if compute == "long long" else ""
        return f"({number}{suffix})" if number < 0 else f"{number}{suffix}"
    number_f = float(value)
    if math.isnan(number_f):
        return "CUDART_NAN_F" if compute == "float" else "CUDART_NAN"
    if math.isinf(number_f):
        name = "CUDART_INF_F" if compute == "float" else "CUDART_INF"
        return f"-{name}" if number_f < 0 else name
    if compute == "float":
        # Too large for a float: infinity, as torch's own conversion gives.
        if abs(number_f) > 3.4028235677973366e38:
            return "-CUDART_INF_F" if number_f < 0 else "CUDART_INF_F"
        text = _shortest_float(number_f)
        return f"({text}f)" if number_f < 0 else f"{text}f"
    text = repr(number_f)
    return f"({text})" if number_f < 0 else text


def _shortest_float(number: float) -> str:
    text = f"{number:.9g}"
    for digits in range(1, 9):
        shorter = f"{number:.{digits}g}"
        if abs(float(shorter) - number) <= abs(number) * 2**-30:
            text = shorter
            break
    return text if any(mark in text for mark in ".einf") else text + ".0"


VECTOR_AND_CONVERSION = """// N neighbouring elements, moved as one access of up to 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T element[N];
};

template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load(const T* address) {
  return *reinterpret_cast<const Vector<T, N>*>(address);
}

template <int N, typename T>
__device__ __forceinline__ void store(T* address, const Vector<T, N>& values) {
  *reinterpret_cast<Vector<T, N>*>(address) = values;
}
"""

ALIGNED = """
// Whether 16-byte accesses may start at this address.
static bool aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}
"""


def widen(text: str, dtype: str) -> str:
    """Return C++ that turns a stored element into its compute type."""
    if dtype == "float16":
        return f"__half2float({text})"
    if dtype == "bfloat16":
        return f"__bfloat162float({text})"
    return text


def narrow(text: str, dtype: str) -> str:
    """Return C++ that turns a computed value into its stored form, rounding to nearest even."""
    if dtype == "float16":
        return f"__float2half_rn({text})"
    if dtype == "bfloat16":
        return f"__float2bfloat16_rn({text})"
    if STORAGE[dtype] != COMPUTE[dtype]:
        return f"static_cast<{STORAGE[dtype]}>({text})"
    return text


def headers(dtypes: set[str]) -> list[str]:
    """Return the include lines that kernels over these element types need."""
    lines = ["#include <cuda_runtime.h>", "#include <math_constants.h>", "#include <stdint.h>"]
    if "float16" in dtypes:
        lines.insert(0, "#include <cuda_fp16.h>")
    if "bfloat16" in dtypes:
        lines.insert(0, "#include <cuda_bf16.h>")
    return sorted(lines)
