"""Emitted CUDA C++ run on the host, thread after thread: its helpers without PTX.

Only for kernels whose threads do not talk to each other. Needs g++ with _Float16.
"""

import ctypes
import re
import subprocess

from steelyard_kernels.emit import cuda_helpers

PRELUDE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
using std::min; using std::max;
struct Index { unsigned x; };
extern "C" { Index threadIdx, blockIdx; }
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
#define __global__
#define __shared__
#define __launch_bounds__(threads)
template <class To, class From> To as(From from) {
  To to; memcpy(&to, &from, sizeof to); return to;
}
float __int_as_float(unsigned bits) { return as<float>(bits); }
double __longlong_as_double(long long bits) { return as<double>(bits); }
int __float_as_int(float x) { return as<int>(x); }
long long __double_as_longlong(double x) { return as<long long>(x); }
int __umulhi(int a, int b) { return (uint64_t)(uint32_t)a * (uint32_t)b >> 32; }
template <class To> const int digits = std::numeric_limits<To>::digits;
template <class To, class From> To to_int(From from, To low, To high) {
  return from <= (From)low ? low : from >= std::ldexp((From)1, digits<To>) ? high : (To)from;
}
int __float2int_rz(float x) { return to_int(x, INT32_MIN, INT32_MAX); }
int __double2int_rz(double x) { return to_int(x, INT32_MIN, INT32_MAX); }
long long __float2ll_rz(float x) { return to_int<long long>(x, INT64_MIN, INT64_MAX); }
long long __double2ll_rz(double x) { return to_int<long long>(x, INT64_MIN, INT64_MAX); }
unsigned __float2uint_rz(float x) { return to_int(x, 0u, UINT32_MAX); }
unsigned __double2uint_rz(double x) { return to_int(x, 0u, UINT32_MAX); }
uint64_t __float2ull_rz(float x) { return to_int<uint64_t>(x, 0, UINT64_MAX); }
uint64_t __double2ull_rz(double x) { return to_int<uint64_t>(x, 0, UINT64_MAX); }
long double turned(long double x, int quarters) {
  const long double pi = 3.14159265358979323846264338327950288L;
  long double left = x - 2 * rintl(x / 2), near = rintl(2 * left);
  long double angle = pi * (left - near / 2);
  int turn = (int)(near + quarters + 4) % 4;
  long double size = turn % 2 ? cosl(angle) : sinl(angle);
  return turn < 2 ? size : -size;
}
float sinpif(float x) { return turned(x, 0); }
float cospif(float x) { return turned(x, 1); }
double erfinv(double x) {
  long double size = fabsl(x), y = sqrtl(-logl((1 - size) * (1 + size)));
  if (!(size > 0 && size < 1)) return size == 1 ? x * INFINITY : size ? NAN : x;
  for (int k = 0; k < 60; k++) {
    long double off = size < 0.5 ? erfl(y) - size : (1 - size) - erfcl(y);
    long double step = off / (1.12837916709551257390L * expl(-y * y));
    y -= step / (1 + y * step);
  }
  return x < 0 ? -y : y;
}
float erfinvf(float x) { return erfinv(x); }
float exp2_approx(float x) { return std::exp2((double)x); }
float rcp_approx(float x) { return 1 / x; }
double rcp_approx(double x) { return (float)(1 / x); }
float rsqrtf(float x) { return 1 / std::sqrt((double)x); }
double rsqrt(double x) { return 1 / std::sqrt((long double)x); }
template <class T> T min_nan(T a, T b) { return a < b || a != a ? a : b; }
template <class T> T max_nan(T a, T b) { return a > b || a != a ? a : b; }
template <class T> float round_to_odd(T exact) {
  float near = (float)(long double)exact;
  long double back = near, from = exact;
  if (back == from || from != from) return near;
  unsigned bits = as<unsigned>(near);
  return as<float>((bits - (std::fabs(back) > std::fabs(from))) | 1);
}
float f16_low(unsigned pair) { return as<_Float16>((unsigned short)pair); }
float f16_high(unsigned pair) { return f16_low(pair >> 16); }
unsigned short f16_round(float x) { return as<unsigned short>((_Float16)x); }
unsigned f16_pack(float a, float b) { return f16_round(a) | (unsigned)f16_round(b) << 16; }
float bf16_low(unsigned pair) { return as<float>(pair << 16); }
float bf16_high(unsigned pair) { return as<float>(pair & 0xffff0000u); }
unsigned short bf16_round(float x) {
  unsigned bits = as<unsigned>(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
unsigned bf16_pack(float a, float b) {
  return bf16_round(a) | (unsigned)bf16_round(b) << 16;
}
#define OF_HALVES(op, half, value) \
  unsigned short op##_##half(unsigned short first, unsigned short second) { \
    float a = half##_low(first), b = half##_low(second); \
    return half##_round(value); \
  } \
  unsigned op##_##half##x2(unsigned a, unsigned b) { \
    return op##_##half(a, b) | (unsigned)op##_##half(a >> 16, b >> 16) << 16; \
  }
#define OPERATION(op, value) OF_HALVES(op, f16, value) OF_HALVES(op, bf16, value)
OPERATION(min, min_nan(a, b))
OPERATION(max, max_nan(a, b))
OPERATION(add, a + b)
OPERATION(sub, a - b)
""" + "\n".join(
    (
        *cuda_helpers.SIGMOID,
        *cuda_helpers.SOFTPLUS,
        cuda_helpers.ERF,
        cuda_helpers.SIN_HALF_TURNS,
        "",
    )
)
FLAGS = ("-O0", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-std=c++17")


def load(text, folder):
    """Return a function `run(entry, blocks, threads, *args)` over a program's text."""
    name = f"kernels{len(list(folder.iterdir()))}"  # one library a name and process
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    kernels = text[text.index("#line") :]
    source.write_text(PRELUDE + re.sub(r"#pragma unroll.*", "", kernels))
    command = ["g++", *FLAGS, "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    loaded = ctypes.CDLL(str(library))
    thread = ctypes.c_uint.in_dll(loaded, "threadIdx")
    block = ctypes.c_uint.in_dll(loaded, "blockIdx")

    def run(entry, blocks, threads, *args):
        function = getattr(loaded, entry)
        given = [
            ctypes.c_void_p(arg.ctypes.data) if hasattr(arg, "ctypes") else arg
            for arg in args
        ]
        for block.value in range(blocks):
            for thread.value in range(threads):
                function(*given)

    return run
