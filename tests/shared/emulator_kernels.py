"""Kernels for the emulator's tests, right and wrong, and functions that run them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cuda.bindings import nvrtc

from harness.emulator import Buffer, Emulation, emulate
from harness.kernels.compiler import Cubin
from harness.kernels.cpp.compilers.report import Resources
from harness.kernels.spec import Variant
from harness.launch.builds import Built


@functools.cache
def compile_ptx(source: str, arch: str = "compute_90", *extra: str) -> str:
    """Compile to PTX with line information and `extra` options; line 1 is the source's first line."""
    data = source.encode()
    program = _checked(nvrtc.nvrtcCreateProgram(data, b"kernel.cu", 0, None, None))
    options = [f"--gpu-architecture={arch}".encode(), b"-lineinfo", b"--std=c++17"]
    options += [option.encode() for option in extra]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status:
        log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)) + 1)
        text = bytes(log)
        nvrtc.nvrtcGetProgramLog(program, text)
        raise RuntimeError(text.decode())
    ptx = bytes(bytearray(_checked(nvrtc.nvrtcGetPTXSize(program))))
    _checked(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx.rstrip(b"\0").decode()


def ptx_only(variant: Variant, ptx: str, *, arch: str, entry: str) -> Built:
    """Return a build that has PTX and no machine code: all that the emulator needs."""
    nothing = Resources(registers=0, shared=0, stack=0, spill_stores=0, spill_loads=0)
    cubin = Cubin(
        variant=variant, arch=arch, code=b"", ptx=ptx, log="", resources=nothing, compiler="", entry=entry
    )
    return Built(variant=variant, cubin=cubin, sass=None)


def _checked(result: tuple[Any, ...]) -> Any:
    if result[0]:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) > 1 else None


SIGNATURE = (
    'extern "C" __global__ void mm(const float* a,const float* b,float* c,float alpha,float beta,int n)'
)

NAIVE = f"""{SIGNATURE} {{
  int r=blockIdx.y*blockDim.y+threadIdx.y, q=blockIdx.x*blockDim.x+threadIdx.x;
  if(r<n && q<n){{
    float s=0;
    for(int k=0;k<n;k++) s+=a[r*n+k]*b[k*n+q];
    c[r*n+q]=alpha*s+beta*c[r*n+q];
  }}
}}
"""

TILED = f"""#define T TILE
{SIGNATURE} {{
 __shared__ float as[T][T], bs[T][T];
 int r=blockIdx.y*T+threadIdx.y, q=blockIdx.x*T+threadIdx.x; float s=0;
 for(int t=0;t<(n+T-1)/T;t++){{
  as[threadIdx.y][threadIdx.x]= (r<n&&t*T+threadIdx.x<n)?a[r*n+t*T+threadIdx.x]:0.f;
  bs[threadIdx.y][threadIdx.x]= (q<n&&t*T+threadIdx.y<n)?b[(t*T+threadIdx.y)*n+q]:0.f;
  __syncthreads();
  for(int k=0;k<T;k++) s+=as[threadIdx.y][k]*bs[k][threadIdx.x];
  __syncthreads(); // second
 }}
 if(r<n&&q<n)c[r*n+q]=alpha*s+beta*c[r*n+q];
}}
"""
TILED16, TILED32 = (TILED.replace("TILE", str(t)) for t in (16, 32))
FIRST, SECOND = "  __syncthreads();\n", "  __syncthreads(); // second\n"

BLOCKED = f"""
#define BK 8
#define TM 8
#define TN 8
{SIGNATURE.replace("void mm", "void __launch_bounds__(NT) mm").replace("* ", "* __restrict__ ", 2)} {{
 __shared__ __align__(16) float as[BK][BM];
 __shared__ __align__(16) float bs[BK][BN];
 int tid=threadIdx.x;
 int tr=tid/(BN/TN), tc=tid%(BN/TN);
 const float* A=a+blockIdx.y*BM*n; const float* B=b+blockIdx.x*BN;
 float acc[TM][TN]={{}};
 for(int k0=0;k0<n;k0+=BK){{
  #pragma unroll
  for(int i=tid;i<BM*BK/4;i+=NT){{
    int row=i/(BK/4), c4=i%(BK/4);
    float4 v=*(const float4*)&A[row*n+k0+c4*4];
    as[c4*4+0][row]=v.x; as[c4*4+1][row]=v.y; as[c4*4+2][row]=v.z; as[c4*4+3][row]=v.w;
  }}
  #pragma unroll
  for(int i=tid;i<BK*BN/4;i+=NT){{
    int row=i/(BN/4), c4=i%(BN/4);
    *(float4*)&bs[row][c4*4]=*(const float4*)&B[(k0+row)*n+c4*4];
  }}
  __syncthreads();
  #pragma unroll
  for(int k=0;k<BK;k++){{
    float ra[TM], rb[TN];
    #pragma unroll
    for(int i=0;i<TM;i++) ra[i]=as[k][tr*TM+i];
    #pragma unroll
    for(int j=0;j<TN;j++) rb[j]=bs[k][tc*TN+j];
    #pragma unroll
    for(int i=0;i<TM;i++)
     #pragma unroll
     for(int j=0;j<TN;j++) acc[i][j]+=ra[i]*rb[j];
  }}
  __syncthreads();
 }}
 #pragma unroll
 for(int i=0;i<TM;i++)
  #pragma unroll
  for(int j=0;j<TN;j+=4){{
   float4* p=(float4*)&c[(blockIdx.y*BM+tr*TM+i)*n+blockIdx.x*BN+tc*TN+j];
   float4 v=*p;
   v.x=alpha*acc[i][j]+beta*v.x; v.y=alpha*acc[i][j+1]+beta*v.y;
   v.z=alpha*acc[i][j+2]+beta*v.z; v.w=alpha*acc[i][j+3]+beta*v.w;
   *p=v;
  }}
}}
"""


def blocked(size: int) -> str:
    """Return the register-blocked GEMM with tiles of `size` by `size`."""
    return f"#define BM {size}\n#define BN {size}\n#define NT {size * size // 64}\n{BLOCKED}"


ASYNC = rf"""#define T 32
#define CP4(dst,src) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" \
  :: "r"((unsigned)__cvta_generic_to_shared(dst)), "l"(src))
{SIGNATURE} {{
 __shared__ float as[2][T][T], bs[2][T][T];
 int ty=threadIdx.y, tx=threadIdx.x;
 int r=blockIdx.y*T+ty, q=blockIdx.x*T+tx; float s=0; int nt=n/T;
 CP4(&as[0][ty][tx], &a[r*n+tx]); CP4(&bs[0][ty][tx], &b[ty*n+q]);
 asm volatile("cp.async.commit_group;\n" ::);
 for(int t=0;t<nt;t++){{
  int cur=t&1;
  if(t+1<nt){{
   CP4(&as[cur^1][ty][tx], &a[r*n+(t+1)*T+tx]); CP4(&bs[cur^1][ty][tx], &b[((t+1)*T+ty)*n+q]);
  }}
  asm volatile("cp.async.commit_group;\n" ::);
  asm volatile("cp.async.wait_group 1;\n" ::);
  __syncthreads();
  #pragma unroll
  for(int k=0;k<T;k++) s+=as[cur][ty][k]*bs[cur][k][tx];
  __syncthreads(); // second
 }}
 c[r*n+q]=alpha*s+beta*c[r*n+q];
}}
"""

# name -> (source, block, side of the square tile)
MATMULS: dict[str, tuple[str, tuple[int, int], int]] = {
    "naive16": (NAIVE, (16, 16), 16),
    "tiled16": (TILED16, (16, 16), 16),
    "tiled32": (TILED32, (32, 32), 32),
    "reg64": (blocked(64), (64, 1), 64),
    "reg128": (blocked(128), (256, 1), 128),
    "async32": (ASYNC, (32, 32), 32),
}


def line_of(source: str, text: str) -> int:
    """Return the number of the one line that holds `text`."""
    found = [number for number, line in enumerate(source.splitlines(), 1) if text in line]
    if len(found) != 1:
        raise LookupError(f"{text!r} is in lines {found}")
    return found[0]


def matmul(
    source: str, block: tuple[int, int], tile: int, n: int, arch: str = "compute_90", **options: Any
) -> tuple[Emulation, np.ndarray, np.ndarray]:
    """Run C = 1.5 A B + 0.5 C, all n by n; return (emulation, C, C expected in float64)."""
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(3))
    expected = 1.5 * (a.astype(np.float64) @ b) + 0.5 * c
    side = -(-n // tile)
    run = emulate(
        compile_ptx(source, arch),
        "mm",
        grid=(side, side),
        block=block,
        arguments=[
            *(Buffer(array=x, name=name) for x, name in ((a, "a"), (b, "b"), (c, "c"))),
            np.float32(1.5),
            np.float32(0.5),
            np.int32(n),
        ],
        **options,
    )
    return run, c, expected


def launch(
    source: str, entry: str, grid: Any, block: Any, *arguments: Any, arch: str = "compute_90", **options: Any
) -> Emulation:
    """Run a kernel of `source`; arrays are named a, b, c... in their order."""
    names = iter("abcdefgh")
    bound = [Buffer(array=x, name=next(names)) if isinstance(x, np.ndarray) else x for x in arguments]
    return emulate(compile_ptx(source, arch), entry, grid=grid, block=block, arguments=bound, **options)
