"""Compile CUDA C++ with NVRTC, and hint at what it lacks beside nvcc: headers, macros of the host, `main`."""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import BuildError, MissingDependency, SpecError
from harness.kernels.cpp import includes
from harness.kernels.cpp.compilers import apart
from harness.kernels.dtypes import DTYPES, ELEMENT

if TYPE_CHECKING:
    from harness.kernels.spec import Variant

# As macros these would change the language, or CUDA's own variables.
RESERVED = frozenset(keyword.kwlist) | frozenset(
    re.findall(
        r"\w+",
        """true false defined alignas alignof asm auto bool case catch char const constexpr default
        delete do double enum explicit extern float friend goto inline int long mutable namespace
        new noexcept nullptr operator private protected public register restrict short signed sizeof
        static struct switch template this throw typedef typename union unsigned using virtual void
        volatile threadIdx blockIdx blockDim gridDim warpSize x y z""",
    )
)

# NVRTC keeps a cache under the user's home. Code from there comes without ptxas's report (seen with 13.0), so
# this cache is switched off: the harness caches code and report together.
OPTIONS = ("-lineinfo", "--std=c++17", "--ptxas-options=-v", "--no-cache")

# Options that would break what harness promises, with the reason. All others are NVRTC's to judge.
_REFUSED = {
    "the architecture is chosen by --arch and min_arch": ("gpu-architecture", "arch"),
    "without line numbers no finding could name its line": ("generate-line-info", "lineinfo"),
    "code for debugging is other code than what would be measured": ("device-debug", "G"),
    "the machine code must be whole, not to be linked": (
        *("relocatable-device-code", "rdc", "dc", "device-c", "dlink-time-opt", "dlto", "gen-opt-lto"),
    ),
    "its file would not be part of the key of the cache: write #include instead": ("pre-include", "include"),
    "write include = [...] in the front matter instead, or -I": ("include-path", "I"),
    "harness caches code together with its report": (
        *("no-cache", "cache", "pch", "create-pch", "use-pch", "pch-dir", "pch-messages"),
    ),
    "parameters and types are macros already: list them under [params]": ("undefine-macro", "U"),
    "it writes files": ("time", "device-time-trace", "fdevice-time-trace", "keep", "keep-dir"),
    "the compiler's warnings are shown": ("disable-warnings", "w"),
    "NVRTC 13.5 keeps it for all that the process compiles later: write __restrict__ at the parameters": (
        "restrict",
    ),
    "no code would come out": ("minimal", "version", "help", "h", "V"),
}
_REASONS = {name: reason for reason, names in _REFUSED.items() for name in names}
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?\Z", re.DOTALL)
_ATTACHED = re.compile(r"-[IU](?=[^=\s])")  # -I/folder, -UNAME
_SINGLE = ("--std", "-std", "--maxrregcount", "-maxrregcount")  # of which the last one given counts


def refusal(option: str) -> str:
    """Return why harness does not pass this option to NVRTC; empty where it does."""
    if attached := _ATTACHED.match(option):
        return _REASONS[attached[0][1:]]
    match = _OPTION.match(option)
    if not match:
        return "an option begins with - and is one word, such as --maxrregcount=64"
    name, value = match.groups()
    if name in {"ptxas-options", "Xptxas"}:
        return "" if value else "it is one word: --ptxas-options=-O2"
    return _REASONS.get(name, "")


def options(chosen: Sequence[str], library: Sequence[str] = (), *, wide: bool = False) -> tuple[str, ...]:
    """Return every option but the architecture and the folders: ours, then the `chosen` ones.

    One of ours that is chosen otherwise is left out. `library` has the names of the headers of libraries that
    are included: CUTLASS leaves functions without ``__device__`` and needs ``-default-device``. `wide` is
    True for a text with ``__int128``, which NVRTC knows where it is asked to.
    """
    given = {option.split("=")[0].lstrip("-") for option in chosen}
    own = [o for o in OPTIONS if o.split("=")[0] not in _SINGLE or o.split("=")[0].lstrip("-") not in given]
    if wide:
        own.append("--device-int128")
    if library:
        own.append("-diag-suppress=47")  # macros of the host that a library defines in other words than ours
    if any(name.startswith(("cute/", "cutlass/")) for name in library) and "default-device" not in given:
        own.append("-default-device")
    return (*own, *chosen)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """The outcome of a translation by NVRTC: machine code, PTX, its log, and the entry's name in the code."""

    code: bytes
    ptx: bytes
    log: str
    entry: str


def names_nothing(log: str) -> bool:
    """Return True where all is right but the entry, which is the name of no function, or of several."""
    own = log.partition(" detected in the compilation of ")[0]  # what follows is why host code was left out
    return set(re.findall(r"^(.+)\(\d+\): (?:\w+ )?error", own, re.MULTILINE)) == {"__nv_name_map"}


class CompileError(Exception):
    """Raised with the compiler's `log` where it refuses the source; `code` is NVRTC's name of the error."""

    def __init__(self, code: str, log: str) -> None:
        super().__init__(code, log)  # both, as pickle wants them
        self.code, self.log = code, log


def translate(
    source: str,
    path: Path,
    entry: str,
    options: Sequence[str],
    headers: Mapping[str, str] | None = None,
    until: float | None = None,
) -> Translation:
    """Compile `source`, which `path` names. `entry` is a name expression, such as ``k<float, 16>``.

    `headers` are texts that stand in for files, by the names that ``#include`` has. With `until` NVRTC runs
    in another process, at most until the monotonic clock shows that: see `apart.call`. Raises CompileError
    with the log where NVRTC refuses the source, an option or the entry.
    """
    if until is None:
        return _translated(source, path, entry, options, headers)
    return apart.call(_translated, source, path, entry, options, headers, until=until)


def _translated(
    source: str, path: Path, entry: str, options: Sequence[str], headers: Mapping[str, str] | None
) -> Translation:
    library = api()
    texts = {name.encode(): text.encode() for name, text in (headers or {}).items()}
    name = str(path.resolve()).encode()
    given = (len(texts), list(texts.values()), list(texts)) if texts else (0, None, None)
    program = ok(library, "nvrtcCreateProgram", source.encode(), name, *given)
    try:
        if entry:
            ok(library, "nvrtcAddNameExpression", program, entry.encode())
        (code,) = library.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = fetch(library, "nvrtcGetProgramLog", program).decode(errors="replace").strip("\0 \n")
        if code != library.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(code.name, log)
        lowered = ok(library, "nvrtcGetLoweredName", program, entry.encode()).decode() if entry else ""
        ptx = fetch(library, "nvrtcGetPTX", program).rstrip(b"\0")
        return Translation(code=fetch(library, "nvrtcGetCUBIN", program), ptx=ptx, log=log, entry=lowered)
    finally:
        library.nvrtcDestroyProgram(program)


def hint(log: str) -> str:
    """Return what to do about the first error of a log that is due to NVRTC not being nvcc; else ""."""
    for pattern, answer in _HINTS:
        for found in re.finditer(pattern, log):
            if said := answer(found):
                return said
    return ""


_MACROS = {  # identifiers that nvcc brings along, or host headers have: the header that has them here
    "math.h": r"INFINITY|NAN|HUGE_VALF?|M_[A-Z0-9_]+",
    "float.h": r"(?:FLT|DBL)_[A-Z0-9_]+",
    "limits.h": r"(?:U?(?:CHAR|SHRT|INT|LONG|LLONG)|S?CHAR)_(?:MAX|MIN)|CHAR_BIT",
    "stdint.h": r"u?int(?:8|16|32|64|ptr)_t|U?INT(?:8|16|32|64)_(?:MAX|MIN|C)",
    "math_constants.h": r"CUDART_\w+",
    "cuda_fp16.h": r"half2?|__half2?|__\w*half2?\w*",
    "cuda_bf16.h": r"nv_bfloat162?|__nv_bfloat162?|__\w*bfloat162?\w*",
    "cooperative_groups.h": r"cooperative_groups",
    "mma.h": r"nvcuda|wmma",
}
_STAND_INS = ("math.h", "float.h", "limits.h", "stdint.h", "cuda_fp16.h", "cuda_bf16.h")


def header_of(name: str) -> str:
    """Return the C header that harness has, or CUDA's of 16-bit floats, that defines `name`; "" if none."""
    return next((header for header in _STAND_INS if re.fullmatch(_MACROS[header], name)), "")


_UNDEFINED = r'(?:identifier|namespace) "(\w+)" is undefined'
_NO_FILE = r'(?:cannot|could not) open source file "([^"]+)"'
_OF_STD = r'namespace "std" has no member "(\w+)"'


def _missing_name(found: re.Match[str]) -> str:
    for header, names in _MACROS.items():
        if re.fullmatch(names, found[1]):
            return f"nvcc includes much by itself, NVRTC nothing: #include <{header}> for {found[1]}"
    return ""


def _elsewhere(found: re.Match[str]) -> str:
    folder = includes.elsewhere(found[2], Path(found[1]))
    return f"-I {folder}, or include = [...] in front matter: {found[2]} is there" if folder else ""


def _macro(found: re.Match[str]) -> str:
    return f"if {found[1]} is a macro that the build defines, with -D: -p {found[1]}=64"


def _of_host(_: re.Match[str]) -> str:
    return "device code cannot call host code, which is left out: write __device__ before what it calls"


_HINTS = (
    (
        r"[/\\](?:cute|cutlass)[/\\]\S*: error: declaration is incompatible with template parameter",
        lambda _: "CUTLASS 4.2 wants the libcu++ of CUDA 13.0: pip install 'nvidia-cuda-cccl==13.0.*'",
    ),
    (rf"(?m)^(.+)\(\d+\): .*{_NO_FILE}", _elsewhere),
    (_NO_FILE, lambda found: includes.hint(found[1])),
    (_UNDEFINED, _missing_name),
    (r'identifier "cuda[A-Z]\w*" is undefined', _of_host),
    (r"is considered a host (?:function|variable)", _of_host),
    (r'identifier "(_*[A-Z][A-Z0-9_]*)" is undefined', _macro),
    (_OF_STD, lambda found: f"the standard library is <cuda/std/...> here, cuda::std::{found[1]}"),
)


@functools.cache
def api() -> Any:
    """Return the bindings of NVRTC, which name it ``nvrtcCompileProgram`` and so on."""
    return bindings("nvrtc")


def bindings(name: str) -> Any:
    """Return the module of cuda.bindings. Raises MissingDependency where it cannot be imported."""
    try:
        return __import__(f"cuda.bindings.{name}", fromlist=[name])
    except ImportError as e:
        raise MissingDependency(
            f"cuda.bindings cannot be imported: {e}", hint="pip install 'cuda-python>=13,<14'"
        ) from None


def fetch(library: Any, getter: str, program: Any) -> bytes:
    """Return the bytes that an NVRTC getter writes.

    NVRTC writes into the bytes object it is given, which must therefore be a fresh one. CPython shares all
    objects of one byte, and writing there would change them for the whole process: hence two spare bytes.
    """
    size = ok(library, f"{getter}Size", program)
    buffer = bytes(size + 2)
    ok(library, getter, program, buffer)
    return buffer[:size]


def ok(library: Any, function: str, *args: Any) -> Any:
    """Call NVRTC and return its value, a tuple where there are several. Raises BuildError on failure."""
    try:
        code, *values = getattr(library, function)(*args)
    except RuntimeError as e:  # cuda.pathfinder raises when it finds no library
        raise MissingDependency(
            f"NVRTC cannot be loaded: {e}", hint="pip install 'nvidia-cuda-nvrtc>=13,<14'"
        ) from None
    if code != library.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"{function} failed: {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


def source_text(variant: Variant) -> str:
    """Return what the compiler reads: macros, then the file with its own line numbers.

    Each parameter is a macro, and in a file of several element types so is ``ELEMENT``, the C++ type of the
    one chosen. NVRTC would apply ``-D`` to its built-in header too, where a parameter called T breaks it.
    """
    kernel = variant.kernel
    if kernel.language == "ptx":
        return kernel.source
    path = absolute(kernel.path)
    macros: dict[str, object] = dict(variant.params)
    if len(kernel.dtypes) > 1:
        macros[ELEMENT] = DTYPES[kernel.dtype].cpp
    prelude = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return f'{prelude}#line 1 "{path}"\n{kernel.source}'


def absolute(path: Path) -> str:
    """Return the file's name for the compiler: absolute, so that profilers find the file.

    NVRTC would look in the working directory first for the headers of a file without a folder. A quotation
    mark becomes an apostrophe, and what ends a line or a statement of PTX a space: NVRTC writes the name into
    PTX unchanged, which then does not assemble, and nvdisasm a backslash into its JSON.
    """
    return re.sub(r"[\n\r;{}\\]", " ", str(path.resolve()).replace('"', "'"))


_VARIABLE = re.compile(
    r"^\s*(?:\.\w+ )*\.(?:const|global)\b[^;=\n]*?([\w$]+)(?:\[\d*\])?\s*[;=]", re.MULTILINE
)


def variable(ptx: str, name: str) -> str:
    """Return what a variable of the module is called in `ptx`, where C++ may have mangled `name`.

    Raises SpecError where none is, or several are.
    """
    known = [str(found) for found in _VARIABLE.findall(ptx)]
    found = [s for s in known if s == name or re.search(rf"(?:^_ZL?|\d+\w*?){len(name)}{name}E?$", s)]
    if len(found) != 1:
        what = "several variables" if found else "no variable"
        raise SpecError(f"{what} {name!r} in the code", hint=f"it has {', '.join(known) or 'none'}")
    return found[0]
