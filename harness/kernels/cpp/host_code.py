"""Compile the device code of a file that has host code, too: ``main``, ``cudaMalloc``, ``k<<<...>>>``.

NVRTC compiles device code only. Which code is of the host is not guessed: where the compiler finds an error
in a function or declaration without ``__global__``, ``__device__`` or ``__constant__``, it is blanked out and
the file is compiled anew, until no error is left or one stands in device code. A file that compiles is never
touched, and line numbers stay.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.kernels import text
from harness.kernels.cpp import brought, nvrtc
from harness.support.cache import digest

_SHOWN = 6  # names in the line that says what was left out
_ATTEMPTS = 30  # compilations of one file: each of them leaves out all that has an error
_ERROR = re.compile(r"^(.+)\((\d+)\): ((?:catastrophic )?error)\b([^\n]*)", re.MULTILINE)
_NO_FILE = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')
_STANDARD = re.compile(r"[a-z_]+")  # <vector>, which no device code has; others may be a kernel's own
_FRAMEWORK = re.compile(
    r"(?:torch|ATen|c10|caffe2|pybind11|tensorflow|opencv2|boost|glog|gtest|gflags|GL|GLFW|SFML|SDL2?|nvtx3)/.*"
    r"|sys/\w+\.h|(?:Python|mpi|omp|unistd|getopt|pthread|memory)\.h"
    r"|(?:complex|ctype|errno|fenv|inttypes|locale|signal|stdarg|stdbool|time)\.h"
    r"|(?:nvml|nvToolsExt|nccl|curand|cu(?:blas|dnn|fft|sparse|solver|til)\w*)\.h"
)
_HOSTED = re.compile(r"<<\s*<|\bmain\s*\(|\bPYBIND11_MODULE\b|\bTORCH_LIBRARY")
_UNDEFINED = re.compile(
    r'"(\w+)"[^\n]* (?:undefined|has no member)|has no member "(\w+)"'
    r'|error: (\w+) is not a template|incomplete type "(\w+)"'
)
_LINE = re.compile(r'^#line 1 "(.*)"\n', re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_DEVICE = re.compile(r"__(?:global|device|constant|shared|managed)__")
_SCOPE = re.compile(r"(?:\bnamespace\b[\s\w:]*|\bextern)\s*\Z")
_CLASS = re.compile(r"\b(?:class|struct|union)\b(?!.*\)\s*(?:const\s*)?\Z)", re.DOTALL)
_TEMPLATE = re.compile(r"\A(?:\s*template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)+")  # and defaults, N = 32
_CALLS = re.compile(r"(?<!\S)([A-Z_]\w*\([\w\s,:<>*&]*\))[ \t]*$", re.MULTILINE)
_MAKES_DEVICE = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)\((?:\\\n|[^\n])*?" + _DEVICE.pattern, re.MULTILINE
)
_LABEL = re.compile(r"\s*(?:(?:public|private|protected)\s*:\s*)*")
_MORE = re.compile(r"\s*[,{]")
_DEEPEST, _LONGEST = 50, 5000  # namespaces in each other, and characters before a function's body
# What was left out of files, by their texts and options: a file's other kernels begin with that.
_LEFT: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {}
_BROKEN: dict[str, tuple[str, str, dict[str, str]]] = {}  # why no kernel of a file compiles
_LOCKS: dict[str, threading.Lock] = {}
_CLOSED = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, kw_only=True)
class Item:
    """A declaration or definition at the level of a file, a namespace or a class.

    It lies from `begin` to `end` in the text. `name` is empty where it has none, and `parts` are the members
    of a class. `host` is False where ``__device__`` or the like stands before its body.
    """

    begin: int
    end: int
    name: str
    host: bool
    function: bool
    parts: tuple[Item, ...] = ()


def translate(
    source: str, path: Path, entry: str, options: Sequence[str], own: Mapping[Path, bytes]
) -> nvrtc.Translation:
    """Compile `source` as `nvrtc.translate` does, without the host code in it that does not compile.

    `own` has the kernel's own headers by path, which may have host code, too. The log begins with a line that
    says what was left out, if anything was. Raises CompileError with the errors in device code, and with the
    reasons for which something was left out that device code uses.
    """
    line = _LINE.search(source)
    file, prelude = (line[1], source[: line.end()]) if line else (str(path), "")
    texts = {str(header): data.decode(errors="replace") for header, data in own.items()}
    texts[file] = source[len(prelude) :]
    if not any("__global__" in content for content in texts.values()):
        return nvrtc.translate(source, path, entry, options)  # no kernel: whatever is wrong is its fault
    folders = [option.partition("=")[2] for option in options if option.startswith("--include-path=")]
    whole, alone = dict(texts), prelude
    called = entry.partition("<")[0].rpartition("::")[2]
    left: dict[str, str] = {}
    key = digest(file, prelude, *options, *(part for pair in texts.items() for part in pair))
    parts = brought.parts_of_cub(texts.values())
    with contextlib.ExitStack() as held:
        for attempt in range(_ATTEMPTS):
            _not_broken(key, called)
            if begun := None if left or attempt > 1 else _LEFT.get(key):
                prelude, texts, left = begun[0], dict(begun[1]), dict(begun[2])
            changed = {name: t for name, t in texts.items() if t != whole[name] and name != file}
            headers = {
                name: f'#line 1 "{at}"\n{changed[at]}' for name, at in _included(texts.values(), changed)
            }
            try:
                # What only host code uses is unused without it, which is no fault of the file.
                quiet = (*options, "-diag-suppress=177") if left else tuple(options)
                # A header that is handed over changed has no folder: what lies beside it is looked for there.
                quiet += tuple(dict.fromkeys(f"--include-path={Path(name).parent}" for name in changed))
                made = nvrtc.translate(prelude + texts[file], path, entry, quiet, parts | headers)
            except nvrtc.CompileError as e:
                if parts and any(name == brought.CUB_CONFIG for name in _NO_FILE.findall(e.log)):
                    raise  # device code needs it
                if attempt == 0 and not left:  # other kernels of the file wait for what is found here
                    held.enter_context(_LOCKS.setdefault(key, threading.Lock()))
                    if key in _LEFT or key in _BROKEN:
                        continue
                elif begun:  # by itself, then
                    prelude, texts, left = alone, dict(whole), {}
                    _LEFT.pop(key, None)
                    continue
                lines = brought.lines(_unknown(e.log), e.log, left, folders)
                if more := [line for line in dict.fromkeys(lines) if line not in prelude]:
                    prelude = "".join(more) + prelude
                    continue
                cut = _without(texts, e.log, folders)
                if not cut:
                    raise _refused(key, e, left, called) from None
                left |= cut
            else:
                if left:
                    _LEFT[key] = prelude, dict(texts), dict(left)
                return replace(made, log=f"{_said(tuple(left))}{made.log}") if left else made
    raise nvrtc.CompileError(f"{_ATTEMPTS} attempts", "\n".join(filter(None, left.values())))


def _unknown(log: str) -> set[str]:
    """Return the names that a log says are not defined."""
    return {name for pair in _UNDEFINED.findall(log) for name in pair if name}


def _not_broken(key: str, called: str) -> None:
    """Raise CompileError where another kernel of the same text had errors that this one has, too."""
    if broken := _BROKEN.get(key):
        raise nvrtc.CompileError(broken[0], _reasons(*broken[1:], called))


def _refused(key: str, e: nvrtc.CompileError, left: dict[str, str], called: str) -> nvrtc.CompileError:
    """Return the error that nothing helps against; keep it, unless it may be that of one kernel alone."""
    if "detected during" not in e.log and "__nv_name_map" not in e.log:
        _BROKEN[key] = e.code, e.log, dict(left)
    return nvrtc.CompileError(e.code, _reasons(e.log, left, called))


def _reasons(log: str, left: Mapping[str, str], called: str) -> str:
    """Return a log with the errors for which something was left out that device code uses."""
    unknown = _unknown(log)
    lost = called in unknown  # with what was left out, so any of that may be why
    used = [left[name] for name in left if lost or name in unknown or re.search(r"[./].*>", name)]
    return "\n".join([log, *filter(None, used)])


def _said(left: Sequence[str]) -> str:
    """Return a line that says what was left out."""
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return f"Host code is left out: {', '.join(left[:_SHOWN])}{more}\n"


def _without(texts: dict[str, str], log: str, folders: Sequence[str]) -> dict[str, str]:
    """Blank out the host code that has errors, in `texts` by file; return these errors by its names."""
    spans: dict[str, dict[tuple[int, int], tuple[str, str]]] = {name: {} for name in texts}

    def leave(wanted: Callable[[str], bool], why: str = "") -> None:
        for name, content in texts.items():
            for found in _INCLUDE.finditer(content):
                if wanted(found[1]):
                    spans[name].setdefault(found.span(), (f"<{found[1]}>", why))

    known: dict[str, tuple[list[int], list[Item]]] = {}
    device = {name for content in texts.values() for name in _MAKES_DEVICE.findall(content)}
    hosted = any(_HOSTED.search(text.COMMENT.sub("", content)) for content in texts.values())
    for at in _ERROR.finditer(log):
        written, number, kind, error = at.groups()
        file = written if written in texts else os.path.realpath(written)
        if file not in texts:
            if "<error-" not in log[at.end() : log.find("\n\n", at.end())]:  # else a template of our errors
                leave(functools.partial(_leads, file))
            continue
        if missing := _NO_FILE.search(error):
            if _of_host_alone(missing[1]) or hosted:
                leave(missing[1].__eq__, f"{written}({number}): {kind}{error}")
                leave(lambda name: _of_host_alone(name) and not brought.is_there(name, folders, texts))
            continue
        if file not in known:
            plain = text.blank(texts[file])
            lengths = (len(line) for line in plain.splitlines(keepends=True))
            known[file] = [0, *itertools.accumulate(lengths)], list(items(plain, 0, len(plain)))
        starts, declared = known[file]
        if int(number) < len(starts):
            for item in _of_host(declared, starts[int(number) - 1], starts[int(number)]):
                reason = f"{written}({number}): {kind}{error}"
                if item.name not in device:
                    spans[file].setdefault((item.begin, item.end), (item.name, reason))
    cut: dict[str, str] = {}
    for file, found in spans.items():
        for begin, end in found:
            texts[file] = texts[file][:begin] + _blank(texts[file][begin:end]) + texts[file][end:]
        cut |= dict(found[span] for span in sorted(found))
    return cut


def _included(texts: Iterable[str], files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, file) for the names by which `texts` include `files`."""
    names = {found for text in texts for found in _INCLUDE.findall(text)}
    for file in files:
        for name in names:
            tail = tuple(part for part in name.split("/") if part not in ("", ".", ".."))
            if Path(file).parts[-len(tail) :] == tail:
                yield name, file


def _blank(item: str) -> str:
    """Return an item as spaces, with its directives: an ``#if`` may belong to an ``#endif`` further on."""
    if _INCLUDE.match(item):
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


def _of_host_alone(name: str) -> bool:
    """Return True where no device code has a header of this name."""
    return bool(_STANDARD.fullmatch(name) or _FRAMEWORK.fullmatch(name))


def _leads(file: str, name: str) -> bool:
    """Return True where an include of `name` leads to `file`, a library's header that has an error.

    That is so of the same file, of headers in folders of one library (``thrust/``), of those that share the
    library's name, such as cublas_v2.h and cublas_api.h, and of cudaTypedefs.h for cuda.h.
    """
    library, own = (re.match(r"[a-z]*", Path(path).name) for path in (file, name))
    same = library and own and library[0] == own[0] and len(own[0]) > 2 and own[0] != "cuda"
    driver = Path(file).name == "cuda.h" and re.fullmatch(r"cuda[A-Z]\w*\.h", name)
    folder = name.partition("/")[0] if "/" in name else ""
    return file.endswith(f"/{name}") or bool(folder and f"/{folder}/" in file) or bool(same or driver)


def items(plain: str, begin: int, end: int, depth: int = 0) -> Iterator[Item]:
    """Yield the declarations and definitions of a text that is `text.blank`, those of namespaces one by one.

    A text whose brackets do not match, as where each branch of an ``#if`` opens one, ends early.
    """
    start = at = _label(plain, begin)
    while at < end:
        c = plain[at]
        if c in "([":
            at = _closing(plain, at, end)
        elif c == "{" and depth < _DEEPEST and _SCOPE.search(plain, max(start, at - _LONGEST), at):
            yield from items(plain, at + 1, (closed := _closing(plain, at, end)) - 1, depth + 1)
            start = at = _label(plain, closed)
        elif c == "{":
            closed = _closing(plain, at, end)
            head = _TEMPLATE.sub("", plain[start:at])
            function = len(head) < _LONGEST and _is_function(head)
            if not function or _MORE.match(plain, closed, end):  # initializers of members precede a body
                at = closed
                continue
            yield _item(plain, start, closed, head, function=True, depth=depth)
            start = at = _label(plain, closed)
        elif c == ";" and not plain[start:at].strip():  # an empty statement, as after a member's body
            start = at = _label(plain, at + 1)
        elif c == ";":
            head = _TEMPLATE.sub("", plain[start:at].partition("{")[0])
            yield _item(plain, start, at + 1, head, function=_is_function(head), depth=depth)
            start = at = _label(plain, at + 1)
        else:
            at += 1
    for call in _CALLS.finditer(plain, start, end):  # of macros, without a semicolon: the last ones
        yield _item(plain, *call.span(1), call[1], function=True, depth=depth)


def _item(plain: str, begin: int, end: int, head: str, *, function: bool, depth: int) -> Item:
    """Return the item of this text, with its members where it is a class; `head` is what precedes a body."""
    opened = -1 if function else plain.find("{", begin, end)
    parts: tuple[Item, ...] = ()
    if opened >= 0 and depth < _DEEPEST and _CLASS.search(head) and "=" not in head:
        parts = tuple(items(plain, opened + 1, _closing(plain, opened, end) - 1, depth + 1))
    called = head if function else re.split(r"=|(?<!:):(?!:)|\[", head)[0]
    names = re.findall(
        r"([A-Za-z_]\w*)\s*(?:<[^()]*>\s*)?(?:\(|\Z)" if function else r"([A-Za-z_]\w*)", called
    )
    return Item(
        begin=begin,
        end=end,
        name=names[0 if function else -1] if names else "",
        host=not _DEVICE.search(head) and "static_assert" not in head,
        function=function,
        parts=parts,
    )


def _is_function(head: str) -> bool:
    """Return True where a text that precedes a body or semicolon declares a function."""
    found, depth = [], 0
    head = re.sub(r"\b(?:alignas|__align__|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)", "", head)
    for c in re.sub(r"\boperator\s*[^\s(\w]+", "operator", head):
        depth -= c in ")]"
        found.append("" if depth else c)
        depth += c in "(["
    return "(" in found and "=" not in found


def _label(plain: str, at: int) -> int:
    """Return where the text goes on after spaces and labels such as ``public:``."""
    found = _LABEL.match(plain, at)
    return found.end() if found else at


def _closing(plain: str, at: int, end: int) -> int:
    """Return the place behind the bracket that closes the one at `at`; `end` if none does."""
    opened, closed = plain[at], _CLOSED[plain[at]]
    depth = 0
    for found in re.compile(rf"[{re.escape(opened + closed)}]").finditer(plain, at, end):
        depth += 1 if found[0] == opened else -1
        if not depth:
            return found.end()
    return end
