"""Blank out the host code of texts, and the device code, that has errors. Line numbers stay."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.kernels import text
from harness.kernels.cpp import brought
from harness.kernels.cpp.source import errors, macros
from harness.kernels.cpp.source.items import Item, items

_STANDARD = re.compile(r"[a-z_]+")  # <vector>, which no device code has; others may be a kernel's own
_FRAMEWORK = re.compile(
    r"(?:torch|ATen|c10|caffe2|pybind11|tensorflow|opencv2|boost|glog|gtest|gflags|GL|GLFW|SFML|SDL2?|nvtx3)/.*"
    r"|sys/\w+\.h|(?:Python|mpi|omp|unistd|getopt|pthread|memory)\.h"
    r"|(?:complex|ctype|errno|fenv|inttypes|locale|signal|stdarg|stdbool|time)\.h"
    r"|(?:nvml|nvToolsExt|nccl|curand|cu(?:blas|dnn|fft|sparse|solver|til)\w*)\.h"
)
_DRIVERS = re.compile(r"cuda(?:Typedefs|Profiler\w*|E?GL\w*|VDPAU\w*|D3D\w*)\.h")  # and no cudaImage.h
_HOSTED = re.compile(r"<<\s*<|\bmain\s*\(|\bPYBIND11_MODULE\b|\bTORCH_LIBRARY")
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_UNANNOTATED = "without execution space annotations"
_DEVICE = "__(?:global|device|constant|shared|managed)__"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)


def host(
    texts: dict[str, str], log: str, folders: Sequence[str], partly: bool, declared: set[str] | None = None
) -> dict[str, str]:
    """Blank out the host code that has errors, in `texts` by file; return these errors by its names.

    Headers that are not there go with it, of files without host code those of the host's libraries, or all
    with `partly`. To `declared` go all names that are declared there.
    """
    spans: dict[str, dict[tuple[int, int], tuple[str, str]]] = {name: {} for name in texts}

    def leave(wanted: Callable[[str], bool], why: str = "") -> None:
        for name, content in texts.items():
            for found in INCLUDE.finditer(content):
                if wanted(found[1]):
                    spans[name].setdefault(found.span(), (f"<{found[1]}>", why))

    known = _Known(texts)
    made, kernels = (
        {name for content in texts.values() for name in macros.makers(content, words)}
        for words in (_DEVICE, "__global__")
    )
    hosted = any(_HOSTED.search(text.COMMENT.sub("", content)) for content in texts.values())
    for error in errors.read(log):
        if (file := known.file(error.file)) not in texts:
            if "<error-" not in error.text:  # else a template of our errors
                leave(functools.partial(_leads, file))
        elif missing := error.absent:
            if partly or hosted or _of_host_alone(missing):
                leave(missing.__eq__, error.said)
                leave(lambda name: _of_host_alone(name) and not brought.is_there(name, folders, texts))
        else:
            for item in _of_host(*known.line(file, error.line)):
                head = re.split(r"[({;]", texts[file][item.begin : item.end], maxsplit=1)[0]
                if item.name not in made and kernels.isdisjoint(head.split()):
                    if declared is not None:
                        declared |= _declared(texts[file][item.begin : item.end], item)
                    spans[file].setdefault((item.begin, item.end), (item.name, error.said))
    for file, found in spans.items():
        _cut(texts, file, found)
    return {name: why for found in spans.values() for _, (name, why) in sorted(found.items())}


def relaxed(texts: dict[str, str], log: str) -> bool:
    """Write ``__device__`` before the constant functions of the host that have errors for the lack of it.

    Device code may call ``constexpr int ceildiv(int a, int b)`` under nvcc with ``--expt-relaxed-constexpr``.
    Return whether there are any.
    """
    known, places = _Known(texts), set[tuple[str, int]]()
    for error in errors.read(log):
        file = known.file(error.file)
        if file in texts and _UNANNOTATED in error.text:
            for item in _of_host(*known.line(file, error.line)):
                head = re.split(r"[({;]", texts[file][item.begin : item.end], maxsplit=1)[0]
                if item.function and (constant := re.search(r"\bconstexpr\b", head)):
                    places.add((file, item.begin + constant.start()))
    for file, place in sorted(places, reverse=True):
        texts[file] = f"{texts[file][:place]}__device__ {texts[file][place:]}"
    return bool(places)


def _declared(whole: str, item: Item) -> set[str]:
    """Return the names that an item declares: of several variables, and of an enumeration, all."""
    if item.function or item.parts:
        return {item.name, *(part.name for part in item.parts)}
    return {item.name, *re.findall(r"\b([A-Za-z_]\w*)\s*(?=[=\[;,({}])", text.blank(whole))}


def used(texts: Mapping[str, str]) -> set[str]:
    """Return the words of device code and of directives, and of all that declares one of these."""
    found, left = set[str](), list[tuple[set[str], list[str]]]()
    for content in texts.values():
        plain = text.blank(content)
        found.update(*(re.findall(r"\w+", directive) for directive in _DIRECTIVE.findall(content)))
        for item in items(plain, 0, len(plain)):
            words = re.findall(r"\w+", whole := plain[item.begin : item.end])
            if item.host and all(part.host for part in item.parts):
                left.append((_declared(whole, item), words))
            else:
                found.update(words)
    while named := [one for one in left if not one[0].isdisjoint(found)]:
        left = [one for one in left if one[0].isdisjoint(found)]
        found.update(*(words for _, words in named))
    return found


def device(texts: dict[str, str], log: str) -> dict[str, str]:
    """Blank out what has errors, or asks for an instance that has, in `texts` by file; return them by names.

    An instance that nothing but the name of a kernel asks for is that kernel's.
    """
    spans: dict[str, dict[tuple[int, int], tuple[Item, list[str]]]] = {name: {} for name in texts}
    known = _Known(texts)
    for error in errors.read(log):
        asks = [(known.file(file), line) for file, line in error.places]
        file, line = next((place for place in reversed(asks) if place[0] in texts), ("", 0))
        for item in _innermost(*known.line(file, line)) if file else ():
            if _blank(whole := texts[file][item.begin : item.end]) != whole:
                spans[file].setdefault((item.begin, item.end), (item, []))[1].append(error.text)
    cut: dict[str, list[str]] = {}
    for file, found in spans.items():
        before = {entry.name for entry in text.entries(texts[file])}
        for span, (item, whys) in sorted(found.items()):
            _cut(texts, file, (span,))
            after = {entry.name for entry in text.entries(texts[file])}
            for name in sorted(before - after) or [item.name]:
                cut.setdefault(name, []).extend(whys)
            before = after
    return {name: "\n\n".join(dict.fromkeys(whys)) for name, whys in cut.items()}


class _Known:
    """Find what lies in the lines of texts, which are taken apart once an error is in them."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._items: dict[str, tuple[list[int], list[Item]]] = {}

    def file(self, written: str) -> str:
        """Return the file of a text that NVRTC calls so; other files have their resolved names."""
        return written if written in self._texts else os.path.realpath(written)

    def line(self, file: str, number: int) -> tuple[list[Item], int, int]:
        """Return the items of a text, and where a line of it begins and ends."""
        if file not in self._items:
            plain = text.blank(self._texts[file])
            lengths = (len(line) for line in plain.splitlines(keepends=True))
            starts = [0, *itertools.accumulate(lengths)]
            self._items[file] = starts, list(items(plain, 0, len(plain)))
        starts, declared = self._items[file]
        return (declared, starts[number - 1], starts[number]) if number < len(starts) else ([], 0, 0)


def _cut(texts: dict[str, str], file: str, spans: Iterable[tuple[int, int]]) -> None:
    """Blank out parts of a text."""
    for begin, end in spans:
        texts[file] = texts[file][:begin] + _blank(texts[file][begin:end]) + texts[file][end:]


def _blank(item: str) -> str:
    """Return an item as spaces, with its directives: an ``#if`` may belong to an ``#endif`` further on."""
    if INCLUDE.match(item):
        return " " * len(item)
    lines = _DIRECTIVE.split(item), _DIRECTIVE.findall(item)
    spaces = (re.sub(r"[^\n]", " ", part) for part in lines[0])
    return "".join(itertools.chain(*itertools.zip_longest(spaces, lines[1], fillvalue="")))


def _of_host(known: Sequence[Item], begin: int, end: int) -> Iterator[Item]:
    """Yield the host's declarations that reach into the line from `begin` to `end`.

    Of a class with device code only member functions go: without a data member it would be another class.
    """
    for item in known:
        if item.begin >= end or item.end <= begin or not item.host:
            continue
        within = [part for part in item.parts if part.begin < end and part.end > begin]
        whole = not item.parts or any(not part.function for part in within) or not within
        device = any(not part.host for part in item.parts)
        if not whole:
            yield from _of_host(within, begin, end)
        elif device:  # all of it in one line
            yield from _of_host([part for part in within if part.function], begin, end)
        else:
            yield item


def _innermost(known: Sequence[Item], begin: int, end: int) -> Iterator[Item]:
    """Yield what reaches into the line from `begin` to `end`; of a class its functions, if nothing else does.

    An assertion is none of them: it fails for the whole file.
    """
    for item in known:
        if item.begin < end and item.end > begin and item.name != "static_assert":
            within = [part for part in item.parts if part.begin < end and part.end > begin]
            if within and all(part.function for part in within):
                yield from _innermost(within, begin, end)
            else:
                yield item


def _of_host_alone(name: str) -> bool:
    """Return True where no device code has a header of this name."""
    return bool(_STANDARD.fullmatch(name) or _FRAMEWORK.fullmatch(name))


def own(name: str) -> bool:
    """Return True for a header, ``<sizes.h>``, that a kernel may need."""
    return name.startswith("<") and not _of_host_alone(name[1:-1])


def _leads(file: str, name: str) -> bool:
    """Return True where an include of `name` leads to `file`, a library's header that has an error.

    That is so of the same file, of headers in folders of one library (``thrust/``), of those that share the
    library's name, such as cublas_v2.h and cublas_api.h, and of cudaTypedefs.h for cuda.h.
    """
    library, own = (re.match(r"[a-z]*", Path(path).name) for path in (file, name))
    same = library and own and library[0] == own[0] and len(own[0]) > 2 and own[0] != "cuda"
    driver = Path(file).name == "cuda.h" and _DRIVERS.fullmatch(name)
    folder = name.partition("/")[0] if "/" in name else ""
    return file.endswith(f"/{name}") or bool(folder and f"/{folder}/" in file) or bool(same or driver)
