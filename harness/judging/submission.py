"""Take in a kernel file by a stranger: what it may include and how large it may be, and a copy of it alone.

Nothing is compiled where the file lies. Its text and the headers from its own folder are read once, checked,
and copied into a private folder, so that nothing can change between a check and a compilation, and the
compiler finds nothing else. Includes are checked wherever they stand, comments and strings too: a text
that a lexer other than the compiler's takes for a comment cannot hide one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.errors import SpecError, UsageError
from harness.kernels import catalog
from harness.kernels.spec import Kernel

MOST_BYTES = 4 << 20  # of the kernel and its headers together
MOST_FILES = 64
_SUFFIXES = (".cu", ".ptx")
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\f\v]*+\n")
_BLANK = r"[ \t\f\v]*+"  # no comments: to look for their ends may take for ever
_DIRECTIVE = re.compile(
    rf"(?:\#|%:|\?\?=){_BLANK}"
    rf"(?:(?P<word>include_next|include|import|embed)\b{_BLANK}(?P<operand>[^\n]*)|(?P<comment>/\*))"
)
_LITERAL = re.compile(r'"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>')
_MOST_FRONT = 1 << 16  # characters of front matter
_FOLDERS = re.compile(r"^include\s*=\s*\[([^\]]*)\]", re.MULTILINE)  # in front matter
_STRING = re.compile(r"\"([^\"\\\n]*)\"|'([^'\n]*)'")
# Options of NVRTC that change code and nothing else: no file is read or written, no thread is started. Macros
# have no white space, so that their values cannot begin another line.
_OPTION = re.compile(
    r"--?(use_fast_math|default-device|extra-device-vectorization|device-int128"
    r"|(ftz|prec-sqrt|prec-div|fmad)=(true|false)|std=c\+\+\d\d|maxrregcount=\d{1,3}"
    r"|(ptxas-options|Xptxas)=-O[0-3]|define-macro=[A-Za-z_]\w*(=[\w.()+*-]*)?)"
    r"|-D[A-Za-z_]\w*(=[\w.()+*-]*)?",
    re.ASCII,
)
# What tells code where or when it is compiled: here it could be another than the code that is used later.
# `assert` calls the last two with the file's path.
_PLACES = (
    "__FILE__", "__BASE_FILE__", "__FILE_NAME__", "__DATE__", "__TIME__", "__TIMESTAMP__", "__builtin_FILE",
    "__builtin_FILE_NAME", "__builtin_source_location", "source_location", "__assert_fail", "__assertfail",
)  # fmt: skip
# What tells code what it is compiled for, and by what: elsewhere it may be other code.
_TARGETS = (
    "__CUDA_ARCH__", "__CUDA_ARCH_LIST__", "__CUDA_ARCH_SPECIFIC__", "__CUDA_ARCH_FAMILY_SPECIFIC__",
    "__CUDA_MINIMUM_ARCH__", "__CUDACC_RTC__", "__NVCC__", "__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__",
    "__CUDACC_VER_BUILD__", "__CUDACC_DEBUG__", "__CUDA_API_VERSION", "CUDART_VERSION", "CUDA_VERSION",
    "NV_IF_TARGET", "NV_IF_ELSE_TARGET", "NV_DISPATCH_TARGET",
)  # fmt: skip
_FEATURE = re.compile(r"\b__CUDA_ARCH_FEAT_\w+|\b__CUDA_ARCH_HAS_\w+")
_PASTES = re.compile(r"##|%:%:|\?\?=\?\?=")
_WORD = re.compile(r"\w+", re.ASCII)
_PROBES = re.compile(r"\b__has_(?:include|include_next|embed)\b|\.incbin\b|\.include\b")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A kernel file and the headers that it includes from its own folder, by their paths relative to it.

    `name` is that of the kernel file, a key of `files`.
    """

    name: str
    files: dict[str, bytes]

    @property
    def sha256(self) -> str:
        """Return the SHA-256, in hexadecimal, of the names and contents of all files."""
        found = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            found.update(f"{name}\0{len(data)}\0".encode() + data)
        return found.hexdigest()

    @property
    def targets(self) -> str:
        """Return what tells its C++ which architecture it is compiled for, and where; empty without any."""
        texts = {n: _spliced(data.decode(errors="replace")) for n, data in self.files.items()}
        pieces = set[str]()
        for name, text in ((n, text) for n, text in texts.items() if not n.endswith(".ptx")):
            pieces |= (words := set(_WORD.findall(text)))
            feature = _FEATURE.search(text)
            known = next((place for place in _TARGETS if place in words), feature[0] if feature else "")
            if known:
                return f"{known}, {_place(PurePosixPath(name), text, text.index(known))}"
        pasted = any(map(_PASTES.search, texts.values()))
        known = next((place for place in _TARGETS if pasted and _made_of(place, pieces)), "")
        return f"## may paste {known}" if known else ""

    def copy(self, folder: Path) -> Path:
        """Write all files below `folder`, and return the path of the kernel there."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder / self.name


def read(path: Path) -> Submission:
    """Read the kernel at `path` and what it includes from its folder.

    Raises UsageError if there is no such kernel file, and SpecError, with file and line, for a text that
    reaches outside its folder or is too large.
    """
    if path.suffix not in _SUFFIXES:
        raise UsageError("not a kernel file", where=str(path), hint="kernels end in .cu or .ptx")
    try:
        folder = path.absolute().parent.resolve()
        if not path.is_file():
            raise UsageError("no such file" if not path.exists() else "not a regular file", where=str(path))
        if not path.resolve().is_relative_to(folder):
            raise SpecError("a link that leaves its folder", where=str(path))
        found = Submission(name=path.name, files=dict(_closure(folder, path.name)))
        _look_for_places(found)
        return found
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot be read: {e}", where=str(path)) from None


def check(kernel: Kernel) -> None:
    """Raise SpecError for an `include` outside the kernel's folder, or of headers that were not copied, and
    for `options` that may do harm.
    """
    copied = _folders(kernel.source)
    for folder in kernel.include:
        if _leaves(PurePosixPath(folder)):
            raise SpecError(f"include = [{folder!r}], outside its folder", where=kernel.path.name)
        if PurePosixPath(folder) not in copied:
            raise SpecError(
                f"include = [{folder!r}] was not seen",
                where=kernel.path.name,
                hint='write it as a list of plain strings: include = ["headers"]',
            )
    for option in kernel.options:
        if not _OPTION.fullmatch(option) or option not in kernel.source:  # which was looked through
            raise SpecError(
                f"options: {option!r} is not for submissions",
                where=kernel.path.name,
                hint="--use_fast_math, --fmad, --ftz, --prec-div, --prec-sqrt, --maxrregcount, --std, -D are",
            )


def _leaves(path: PurePosixPath) -> bool:
    """Return True for a path that does not stay in the folder in which it begins, on some system."""
    return path.is_absolute() or ".." in path.parts or "\\" in str(path)


def _folders(text: str) -> list[PurePosixPath]:
    """Return the folders that front matter includes.

    What is written in another way than a list of plain strings is not seen, and its headers are not copied.
    """
    lines = [line.removeprefix("//").strip() for line in text.splitlines() if line[:2] == "//"]
    if "/// kernel" not in lines:
        return []
    comment = "\n".join(lines[lines.index("/// kernel") :])[:_MOST_FRONT]
    listed = _STRING.findall(found[1]) if (found := _FOLDERS.search(comment)) else []
    return [path for path in (PurePosixPath(a or b) for a, b in listed) if not _leaves(path)]


def _closure(folder: Path, kernel: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the bytes of the kernel and of every header below `folder` that it includes."""
    todo, seen, room = [PurePosixPath(kernel)], {PurePosixPath(kernel)}, MOST_BYTES
    folders: list[PurePosixPath] | None = None
    while todo:
        name = todo.pop()
        with (folder / name).open("rb") as file:
            data = file.read(room + 1)
        room -= len(data)
        if room < 0:
            raise SpecError(f"more than {MOST_BYTES >> 20} MiB of text", where=str(name))
        yield str(name), data
        text = data.decode(errors="replace")
        folders = _folders(text) if folders is None else folders  # the kernel comes first
        for header in _included(folder, name, text, folders):
            if header not in seen:
                if len(seen) == MOST_FILES:
                    raise SpecError(f"more than {MOST_FILES} files", where=str(name))
                seen.add(header)
                todo.append(header)


def _included(
    folder: Path, name: PurePosixPath, text: str, folders: Sequence[PurePosixPath]
) -> Iterator[PurePosixPath]:
    """Yield the headers below `folder` that a text includes, looked for beside it and in `folders`, too.

    Raises SpecError for one that could be outside.
    """
    text = _spliced(text)
    if probe := _PROBES.search(text):
        raise SpecError(f"{probe[0]}: it looks at files", where=_place(name, text, probe.start()))
    for found in _DIRECTIVE.finditer(text):
        where = _place(name, text, found.start())
        if found["comment"]:
            raise SpecError("a comment within a directive", where=where)
        literal = _LITERAL.match(found["operand"])
        if found["word"] == "embed" or not literal:
            what = "embeds a file" if found["word"] == "embed" else "includes by a macro, or in a comment"
            raise SpecError(
                f"#{found['word']}: it {what}", where=where, hint='only #include "a file beside it"'
            )
        wanted = PurePosixPath(literal["quoted"] or literal["angled"])
        if _leaves(wanted):
            raise SpecError(f"includes {wanted}, outside its folder", where=where)
        for beside in dict.fromkeys((name.parent, PurePosixPath(), *folders)):
            header = folder / beside / wanted
            if not header.is_file():
                continue
            if not header.resolve().is_relative_to(folder):
                raise SpecError(f"includes {wanted}, a link that leaves its folder", where=where)
            yield beside / wanted


def _spliced(text: str) -> str:
    """Return a text with lines that end as `\\n` alone, and those that go on in the next one joined to it."""
    return _SPLICE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _look_for_places(found: Submission) -> None:
    """Raise SpecError for C++ that can know where or when it is compiled, by pasting tokens, too."""
    texts = {n: _spliced(data.decode(errors="replace")) for n, data in found.files.items()}
    words = {n: set(_WORD.findall(text)) for n, text in texts.items() if not n.endswith(".ptx")}
    pasted = any(_PASTES.search(texts[n]) for n in words)
    pieces = set().union(*words.values()) if pasted else set()
    for name, own in words.items():
        if known := next((place for place in _PLACES if place in own), ""):
            at = re.search(rf"\b{known}\b", texts[name])
            where = _place(PurePosixPath(name), texts[name], at.start() if at else 0)
            raise SpecError(f"{known}: it tells where or when it is compiled", where=where)
    if known := next((place for place in _PLACES if _made_of(place, pieces)), ""):
        raise SpecError(f"## may paste {known}, which tells where or when it is compiled", where=found.name)


def _made_of(name: str, pieces: Collection[str]) -> bool:
    """Return True if a name is a sequence of pieces."""
    reached = [True] + [False] * len(name)
    for end in range(1, len(name) + 1):
        reached[end] = any(reached[start] and name[start:end] in pieces for start in range(end))
    return reached[-1]


def _place(name: PurePosixPath, text: str, at: int) -> str:
    """Return ``file:line``. Lines that the text continues by a backslash count as one."""
    return f"{name}:{text.count(chr(10), 0, at) + 1}"


def shipped_headers() -> Path:
    """Return the folder of harness's own headers, which a submission may include."""
    return catalog.folders()[0].resolve() / "include"
