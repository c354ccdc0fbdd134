"""Compile the device code of a file that has host code, too: ``main``, ``cudaMalloc``, ``k<<<...>>>``.

NVRTC compiles device code only. Which code is of the host is not guessed: where the compiler finds an error
in a function or declaration without ``__global__``, ``__device__`` or ``__constant__``, it is blanked out and
the file is compiled anew, until no error is left or one stands in device code. In a file without front matter
that is blanked out then, and what uses it, so that the kernels that are right compile. A file that compiles
is never touched, and line numbers stay.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.kernels.cpp import brought
from harness.kernels.cpp.compilers import nvrtc
from harness.kernels.cpp.source import cuts, errors
from harness.support.cache import digest

_SHOWN = 6  # names in the line that says what was left out
_ATTEMPTS = 30  # compilations of one file: each of them leaves out all that has an error
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
_LINE = re.compile(r'^#line 1 "(.*)"\n', re.MULTILINE)


@dataclass(kw_only=True)
class _File:
    """A file as it is compiled: lines that precede it, and its text and its headers', by their files.

    `host` and `device` have the errors for which something was left out, by its name: host code, with headers
    that are not there, and device code.
    """

    prelude: str
    texts: dict[str, str]
    host: dict[str, str] = field(default_factory=dict)
    device: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _File:
        """Return a file like this, of which more can be left out."""
        return replace(self, texts=dict(self.texts), host=dict(self.host), device=dict(self.device))

    def mend(self, log: str, folders: Sequence[str], partly: bool) -> bool:
        """Bring along what a log misses, or leave out what has errors; return False where neither helps.

        With `partly` that may be any header that is not there and, after host code, device code.
        """
        lines = (*brought.accessors(self.texts), *brought.lines(errors.unknown(log), log, self.host, folders))
        # CUDA's standard library takes seconds each time: what only host code uses goes first.
        if self._bring(lines) or self._leave_unused(log, folders, partly):
            return True
        if self.host and self._bring(brought.of_std(log, folders)):
            return True
        if partly and cuts.relaxed(self.texts, log):
            return True
        if cut := cuts.host(self.texts, log, folders, partly):
            self.host |= cut
        elif partly and (cut := cuts.device(self.texts, log)):
            self.device |= {name: "\n\n".join([*self._known(name), why]) for name, why in cut.items()}
        else:
            return False
        return True

    def _bring(self, lines: Iterable[str]) -> bool:
        """Begin the text with those of some lines that it does not have; return whether there are any."""
        more = [line for line in dict.fromkeys(lines) if line not in self.prelude]
        self.prelude = "".join(more) + self.prelude
        return bool(more)

    def _leave_unused(self, log: str, folders: Sequence[str], partly: bool) -> bool:
        """Leave out host code with errors if no device code has a name of it; return whether any went."""
        texts, names = dict(self.texts), set[str]()
        cut = cuts.host(texts, log, folders, partly, names)
        if not cut or not cuts.used(texts).isdisjoint(names):
            return False
        self.texts, self.host = texts, self.host | cut
        return True

    def _known(self, name: str) -> list[str]:
        """Return why device code of this name was left out before: another class may have such a function."""
        return [self.device[name]] if name in self.device else []

    def lost(self, log: str, called: str) -> bool:
        """Return True where nothing is wrong but that the kernel `called` was left out."""
        return called in self.device and errors.of_name_alone(log)

    def alone(self, log: str) -> bool:
        """Return True where all errors are those of a kernel by itself, and none of what was left out."""
        return errors.of_name_alone(log) and not errors.unknown(log) & {*self.host, *self.device}

    def why(self, log: str, called: str) -> str:
        """Return the errors of the kernel `called`, and those of what it uses that was left out."""
        found, unknown, left = list[str](), set[str](), [self.device.get(called, log)]
        while left:
            blocks = left.pop(0).split("\n\n")
            found += (block for block in blocks if not errors.unknown(block) & self.device.keys())
            missed = set().union(*map(errors.unknown, blocks)) - unknown
            left += (self.device[name] for name in sorted(missed & self.device.keys()))
            unknown |= missed
        lost = called.rpartition("::")[2] in unknown  # with what was left out, so any of that may be why
        used = (
            why for name, why in self.host.items() if lost or name in unknown or re.search(r"[./].*>", name)
        )
        return "\n".join(["\n\n".join(found), *filter(None, used)])

    def said(self) -> str:
        """Return lines that say what was left out."""
        absent = [name for name, why in self.host.items() if cuts.own(name) and "source file" in why]
        parts = (
            ("Host code is left out", [name for name in self.host if name not in absent]),
            ("Not found, and left out", absent),
            ("Device code with errors is left out", list(self.device)),
        )
        return "".join(f"{what}: {_listed(names)}\n" for what, names in parts if names)


# What was left out of files, by their texts and options: a file's other kernels begin with that.
_LEFT: dict[str, _File] = {}
_BROKEN: dict[str, tuple[str, str, _File]] = {}  # why no kernel of a file compiles
_LOCKS: dict[str, threading.Lock] = {}


def translate(
    source: str,
    path: Path,
    entry: str,
    options: Sequence[str],
    own: Mapping[Path, bytes],
    *,
    partly: bool = False,
    until: float | None = None,
) -> nvrtc.Translation:
    """Compile `source` as `nvrtc.translate` does, without the host code in it that does not compile.

    `own` has the kernel's own headers by path, which may have host code, too. With `partly` device code that
    does not compile is left out as well, and headers that are not there. The log begins with lines that say
    what was left out, if anything was. `until` is as there, for all attempts together. Raises CompileError
    with the errors in the device code of `entry`, and with the reasons for which something was left out that
    it uses.
    """
    line = _LINE.search(source)
    file, prelude = (line[1], source[: line.end()]) if line else (str(path), "")
    texts = {str(header): data.decode(errors="replace") for header, data in own.items()}
    texts[file] = source[len(prelude) :]
    if not any("__global__" in content for content in texts.values()):
        # There is no kernel: whatever is wrong is its own fault.
        return nvrtc.translate(source, path, entry, options, None, until)
    folders = [option.partition("=")[2] for option in options if option.startswith("--include-path=")]
    whole = _File(prelude=prelude, texts=texts)
    left, called = whole.copy(), entry.partition("<")[0].strip()
    key = digest(file, prelude, str(partly), *options, *(part for pair in texts.items() for part in pair))
    parts = brought.parts_of_cub(texts.values())
    with contextlib.ExitStack() as held:
        for attempt in range(_ATTEMPTS):
            _not_broken(key, called)
            if begun := None if left.host or left.device or attempt > 1 else _LEFT.get(key):
                left = begun.copy()
            changed = {name: t for name, t in left.texts.items() if t != texts[name] and name != file}
            headers = {name: _once(at, changed[at]) for name, at in _included(left.texts.values(), changed)}
            cut = bool(left.host or left.device)
            try:
                # What only host code uses is unused without it, which is no fault of the file.
                quiet = (*options, "-diag-suppress=177") if cut else tuple(options)
                # A header that is handed over changed has no folder: what lies beside it is looked for there.
                quiet += tuple(dict.fromkeys(f"--include-path={Path(name).parent}" for name in changed))
                text = left.prelude + left.texts[file]
                made = nvrtc.translate(text, path, entry, quiet, parts | headers, until)
            except nvrtc.CompileError as e:
                if parts and any(error.absent == brought.CUB_CONFIG for error in errors.read(e.log)):
                    raise  # device code needs it
                if left.lost(e.log, called):
                    _LEFT[key] = left
                    raise nvrtc.CompileError(e.code, left.why(e.log, called)) from None
                if attempt == 0 and not cut:  # other kernels of the file wait for what is found here
                    held.enter_context(_LOCKS.setdefault(key, threading.Lock()))
                    if key in _LEFT or key in _BROKEN:
                        continue
                elif begun and not (partly and left.alone(e.log)):  # by itself, then
                    left = whole.copy()
                    _LEFT.pop(key, None)
                    continue
                if not left.mend(e.log, folders, partly):
                    raise _refused(key, e, left, called) from None
            else:
                if cut:
                    _LEFT[key] = left
                return replace(made, log=f"{left.said()}{made.log}") if cut else made
    raise nvrtc.CompileError(f"{_ATTEMPTS} attempts", left.why("", called))


def _once(file: str, content: str) -> str:
    """Return a header with its own lines, to be read once where it asks for it, by whatever names."""
    lines = f'#line 1 "{file}"\n{content}'
    if not _ONCE.search(content):
        return lines
    guard = f"HARNESS_ONCE_{digest(file)}"
    return f"#ifndef {guard}\n#define {guard}\n{lines}\n#endif\n"


def _not_broken(key: str, called: str) -> None:
    """Raise CompileError where another kernel of the same text showed that this one does not compile."""
    if broken := _BROKEN.get(key):
        code, log, left = broken
        raise nvrtc.CompileError(code, left.why(log, called))
    if (known := _LEFT.get(key)) and called in known.device:
        raise nvrtc.CompileError("NVRTC_ERROR_COMPILATION", known.why("", called))


def _refused(key: str, e: nvrtc.CompileError, left: _File, called: str) -> nvrtc.CompileError:
    """Return the error that nothing helps against; keep it, unless it may be that of one kernel alone."""
    if "detected during" not in e.log and "__nv_name_map" not in e.log:
        _BROKEN[key] = e.code, e.log, left
    return nvrtc.CompileError(e.code, left.why(e.log, called))


def _listed(names: Sequence[str]) -> str:
    """Return the first of these names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _included(texts: Iterable[str], files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, file) for the names by which `texts` include `files`."""
    names = {found for text in texts for found in cuts.INCLUDE.findall(text)}
    for file in files:
        for name in names:
            tail = tuple(part for part in name.split("/") if part not in ("", ".", ".."))
            if Path(file).parts[-len(tail) :] == tail:
                yield name, file
