"""CUDA C++ that the tests of NVRTC and cubins compile, no header needed."""

import functools

from steelyard_device import nvrtc

HALF = r"""
extern "C" __global__ void half_scale(const uint4* a, uint4* b) {
  uint4 v = a[threadIdx.x];
  unsigned* u = (unsigned*)&v;
  for (int i = 0; i < 4; i++) {
    float x, y;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(x), "=f"(y) : "r"(u[i]));
    x = x * 2 + 1; y = y * 2 + 1;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u[i]) : "f"(y), "f"(x));
  }
  b[threadIdx.x] = v;
}
"""

EMPTY = 'extern "C" __global__ void empty() {}\n'

SCALE = """
extern "C" __global__ void scale(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * 2.f + 1.f;
}
"""

TEXTURE = """
extern "C" __global__ void look(unsigned long long t, float* y, float x) {
  float a, b, c, d;
  unsigned u;
#define LOOK(text, ...) asm volatile(text : "=f"(a), "=f"(b), "=f"(c), "=f"(d) \\
                                     : "l"(t), __VA_ARGS__); *y++ = a + b + c + d;
  LOOK("tex.2d.v4.f32.f32 {%0, %1, %2, %3}, [%4, {%5, %5}];", "f"(x))
  LOOK("tex.1d.v4.f32.s32 {%0, %1, %2, %3}, [%4, {%5}];", "r"(1))
  LOOK("tex.grad.2d.v4.f32.f32 {%0, %1, %2, %3}, [%4, {%5, %5}], {%5, %5}, {%5, %5};",
       "f"(x))
  LOOK("tld4.r.2d.v4.f32.f32 {%0, %1, %2, %3}, [%4, {%5, %5}];", "f"(x))
  asm volatile("txq.width.b32 %0, [%1];" : "=r"(u) : "l"(t));
  asm volatile("sured.b.add.u32.1d.trap [%0, {%1}], %2;" :: "l"(t), "r"(4), "r"(u));
  asm volatile("suld.b.1d.b32.trap %0, [%1, {%2}];" : "=r"(u) : "l"(t), "r"(4));
  asm volatile("sust.b.1d.b32.trap [%0, {%1}], {%2};" :: "l"(t), "r"(4), "r"(u));
  asm volatile("sust.p.1d.b32.trap [%0, {%1}], {%2};" :: "l"(t), "r"(4), "r"(u));
}
"""

ADAM = """
extern "C" __global__ void adam(float* p, const float* __restrict__ g, float* m,
                                float* v, float lr, float b1, float b2, int n) {
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i + 3 >= n) return;
  float4 P = *(float4*)(p + i), G = *(const float4*)(g + i);
  float4 M = *(float4*)(m + i), V = *(float4*)(v + i);
#define STEP(c) M.c = b1 * M.c + (1 - b1) * G.c; V.c = b2 * V.c + (1 - b2) * G.c * G.c; \\
                P.c -= lr * M.c / (sqrtf(V.c) + 1e-8f);
  STEP(x) STEP(y) STEP(z) STEP(w)
  *(float4*)(p + i) = P; *(float4*)(m + i) = M; *(float4*)(v + i) = V;
}
"""

WIDTHS = "".join(
    f"""
extern "C" __global__ void copy_{bits}(const {type_}* a, {type_}* b) {{
  b[threadIdx.x] = a[threadIdx.x];
}}
extern "C" __global__ void reverse_{bits}(const {type_}* a, {type_}* b) {{
  __shared__ {type_} s[64];
  s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); b[threadIdx.x] = s[63 - threadIdx.x];
}}
"""
    for bits, type_ in (
        (8, "unsigned char"),
        (16, "short"),
        (32, "float"),
        (64, "float2"),
        (128, "float4"),
    )
)
"""Copies by width, and reversals through shared memory of 8 * bits bytes."""

SPILL = """
extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* x) {
  float a[100];
#pragma unroll
  for (int i = 0; i < 100; i++) a[i] = x[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 100; i++) x[i] = a[(i * 7) % 100];
}
"""

CALLS = """
__device__ __noinline__ float callee(float x) {
  float b[40];
  for (int i = 0; i < 40; i++) b[i] = x * i;
  return b[(int)x];
}
extern "C" __global__ void caller(float* a) { a[0] = callee(a[1]); }
__global__ void mangled(int* x) { x[0] = 1; }
"""

BARRIERS = """
extern "C" __global__ void one(float* a) {
  extern __shared__ float s[];
  s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void third(float* a) {
  extern __shared__ float s[];
  s[threadIdx.x] = a[threadIdx.x]; asm volatile("bar.sync 2, 64;");
  a[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void any(float* a, int k) {
  extern __shared__ float s[];
  s[threadIdx.x] = a[threadIdx.x]; asm volatile("bar.sync %0, 64;" :: "r"(k));
  a[threadIdx.x] = s[threadIdx.x ^ 1];
}
"""

WARP = """
extern "C" __global__ void sum(const float* a, float* c) {
  float s = a[threadIdx.x];
#pragma unroll
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  c[threadIdx.x] = s;
}
"""

MATRIX = r"""
extern "C" __global__ void mma(const unsigned* a, const unsigned* b, float* c) {
  float C[4] = {0, 0, 0, 0};
  int t = threadIdx.x;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},"
               "{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(C[0]), "+f"(C[1]), "+f"(C[2]), "+f"(C[3])
               : "r"(a[t]), "r"(a[t + 1]), "r"(a[t + 2]), "r"(a[t + 3]),
                 "r"(b[t]), "r"(b[t + 1]));
  for (int i = 0; i < 4; i++) c[t * 4 + i] = C[i];
}
"""

ASYNC = r"""
extern "C" __global__ void copies(const char* a, unsigned* c) {
  __shared__ float4 s[96];
  unsigned p = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
  asm volatile("cp.async.ca.shared.global [%0],[%1],4;" :: "r"(p), "l"(a));
  asm volatile("cp.async.ca.shared.global [%0],[%1],8;" :: "r"(p + 16), "l"(a + 16));
  asm volatile("cp.async.ca.shared.global [%0],[%1],16;" :: "r"(p + 32), "l"(a + 32));
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" :: "r"(p + 64), "l"(a + 64));
  asm volatile("cp.async.wait_all;");
  __syncthreads();
  unsigned r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0},[%1];"
               : "=r"(r) : "r"(p));
  c[threadIdx.x] = r + s[threadIdx.x ^ 1].x;
}
"""

VARIOUS = r"""
extern "C" __global__ void math(double* d, float* f, long long* l, int* k) {
  int i = threadIdx.x;
  d[i] = d[i] / d[i + 1] + sqrt(d[i + 2]);
  f[i] = expf(f[i]) * tanhf(f[i + 1]) + rsqrtf(f[i + 2]) + __sinf(f[i + 3]);
  l[i] = l[i] / (l[i + 1] | 1) * l[i + 2];
  k[i] = k[i] % (k[i + 1] | 1) + __popc(k[i + 2]) + __clz(k[i + 3]) + min(k[i], k[9]);
}
extern "C" __global__ void votes(float* a, int* b) {
  atomicAdd(a, 1.f);
  int r = atomicAdd(b, threadIdx.x);
  b[r] = __reduce_add_sync(~0u, r) + __ballot_sync(~0u, r > 3) + __brev(r);
  __threadfence();
  b[r + 1] = __match_any_sync(~0u, r) + __byte_perm(r, b[r + 2], b[r + 3]) + clock();
}
"""

ALL = {
    name.lower(): text
    for name, text in globals().items()
    if name.isupper() and isinstance(text, str)
}
"""Every program here, by name."""


@functools.cache
def built(arch):
    """Compile every program here in one for ``arch``, once a test run."""
    return nvrtc.compile("".join(ALL.values()), arch)
