"""Bring along what nvcc's headers define and NVRTC's do not, once a file has been compiled without them.

These are types of system headers and of <cuda.h>, GNU's word for asm, the C headers that harness has, and,
where CUDA's headers are installed, those of 16-bit floats, and its standard library for ``std`` in device
code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path

from harness.kernels.cpp import includes
from harness.kernels.cpp.compilers import nvrtc

_TENSOR_MAP = (  # as <cuda/barrier> declares it, too
    "struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; }; "
    "typedef struct CUtensorMap_st CUtensorMap;"
)
_C = ("char", "short", "int", "long")  # of 8, 16, 32 and 64 bits
_NAMES = {  # of <sys/types.h>, OpenCV, GNU's C++ and cuFFT, and what kernels take of <cuda.h>
    "uint": "typedef unsigned int uint;",
    **{
        f"u_int{bits}_t": f"typedef unsigned {c} u_int{bits}_t;"
        for bits, c in zip((8, 16, 32, 64), _C, strict=True)
    },
    "ushort": "typedef unsigned short ushort;",
    "uchar": "typedef unsigned char uchar;",
    "ulong": "typedef unsigned long ulong;",
    "__asm__": "#define __asm__ asm",
    "cufftReal": "typedef float cufftReal;",
    "cufftDoubleReal": "typedef double cufftDoubleReal;",
    "cufftComplex": "typedef float2 cufftComplex;",
    "cufftDoubleComplex": "typedef double2 cufftDoubleComplex;",
    "CUtensorMap": _TENSOR_MAP,
    "CUtensorMap_st": _TENSOR_MAP,
}
CUB_CONFIG = "cub/config.cuh"
_CUB, _CUB_CLASS = "cub/cub.cuh", re.compile(r"\b(?:Block|Warp)(?:[A-Z][a-z0-9]+)+\b")
_INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_REGISTER = 'use of the "register" storage class'
_OF_STD = re.compile(r'namespace "std" has no member(?: class)? "(\w+)"')
_STD = {  # what device code takes of the standard library, by the header that has it under cuda/std
    "limits": r"numeric_limits",
    "type_traits": r"(?:is|add|remove|enable|make)_\w+|conditional\w*|decay\w*|\w+_type|\w+_constant|void_t",
    "utility": r"pair|make_pair|move|forward|declval|swap|\w*index_sequence\w*",
    "algorithm": r"min|max",
    "array": r"array",
    "tuple": r"tuple|make_tuple|get",
    "complex": r"complex",
    "cstddef": r"size_t|ptrdiff_t|byte",
    "cmath": r"(?:a?(?:sin|cos|tan)h?|atan2|exp(?:2|m1)?|log(?:2|10|1p|b)?|pow|sqrt|cbrt|hypot|erfc?"
    r"|[lt]gamma|abs|ceil|floor|trunc|l{0,2}r(?:ound|int)|fmod|fma|fmin|fmax|fdim|fabs|copysign)[fl]?|is(?:nan|inf|finite)",
}


def lines(unknown: set[str], log: str, left: Collection[str], folders: Collection[str]) -> Iterator[str]:
    """Yield lines that define what a file lacks, which begin its text.

    `unknown` has the names that its `log` misses, and `left` what was left out of it. `folders` are
    those of its headers.
    """
    if _REGISTER in log:  # of C++ before 17, in which nvcc takes it
        yield "#define register\n"
    yield from _of_headers(unknown, left, folders)


def _of_headers(unknown: set[str], left: Collection[str], folders: Collection[str]) -> Iterator[str]:
    """Yield lines that define what headers of the host bring along under nvcc, of the names in `unknown`."""
    for name in sorted(unknown):
        if name in _NAMES:
            yield f"{_NAMES[name]}\n"
        # That of math, nvcc includes in every file.
        elif (
            (header := nvrtc.header_of(name))
            and (left or header == "math.h")
            and is_there(header, folders, ())
        ):
            yield f"#include <{header}>\n"


def accessors(files: Iterable[str]) -> Iterator[str]:
    """Yield the includes of the stand-ins for PyTorch's headers that are among a kernel's files."""
    names = {Path(file).name for file in files}
    for header in (includes.DEVICE, includes.ACCESSORS):
        if header in names:
            yield f"#include <{header}>\n"


def of_std(log: str, folders: Iterable[str]) -> Iterator[str]:
    """Yield includes of CUDA's standard library for what a log misses in ``std``, where it is installed."""
    missing = set(_OF_STD.findall(log))
    for header, names in _STD.items():
        if any(re.fullmatch(names, name) for name in missing) and is_there(f"cuda/std/{header}", folders, ()):
            yield f"#include <cuda/std/{header}>\nnamespace std {{ using namespace cuda::std; }}\n"


def is_there(name: str, folders: Iterable[str], beside: Iterable[str]) -> bool:
    """Return True where a header is in one of these folders, or beside one of these files."""
    places = chain(map(Path, folders), (Path(file).parent for file in beside))
    return any(includes.is_file(place / name) for place in places)


def parts_of_cub(texts: Iterable[str]) -> dict[str, str]:
    """Return a stand-in for ``<cub/cub.cuh>``, which has host code: those of its parts that `texts` name."""
    texts = list(texts)
    classes = sorted({name for text in texts for name in _CUB_CLASS.findall(text)})
    if not classes or not any(_CUB in _INCLUDED.findall(text) for text in texts):
        return {}
    files = ("_".join(re.findall("[A-Z][a-z0-9]*", name)).lower() for name in classes)
    parts = [f"<cub/{name.partition('_')[0]}/{name}.cuh>" for name in files]
    lines = [f"#if __has_include({part})\n#include {part}\n#endif\n" for part in parts]
    return {_CUB: "".join([f"#include <{CUB_CONFIG}>\n", *lines])}  # missing where cub is
