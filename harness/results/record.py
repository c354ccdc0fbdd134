"""Write and read record files: what was measured, and under which circumstances.

A file is written whole or not at all. Rows measured on a GPU are written in the shape of nvbench's files
(`harness.results.nvbench`), all others as a plain list.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
import os
import platform
import re
import sys
import tomllib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from harness.errors import HarnessError, UsageError
from harness.kernels import catalog
from harness.results import nvbench
from harness.results.rows import ClaimRow, CodeRow, Meta, ProfileRow, Row
from harness.support import files, tools, typed
from harness.support.files import PACKAGE, ROOT

SCHEMA = 2
_DISTRIBUTION = "cuda-harness"

_PACKAGES = (
    "cuda-bindings",
    "numpy",
    "nvidia-cuda-nvrtc",
    "nvidia-nvjitlink",
    "nvidia-cublas",
    "nvidia-ml-py",
)

Document = dict[str, Any]  # a record: `schema`, `kind`, `meta`, and `rows` or nvbench's `benchmarks`


def document(kind: str, records: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> Document:
    """Return the content of a record file.

    `kind` is the verb that made the records, `meta` has what is needed to know how they came about. Folders
    are removed from paths in either.
    """
    meta = {"version": {"json": nvbench.JSON_VERSION}, **meta}
    rows = [_without_folders(r) for r in records]
    content = {"schema": SCHEMA, "kind": kind, "meta": _without_folders(meta)}
    gpu = meta.get("gpu")
    if kind != "bench" or gpu is None:
        return {**content, "rows": rows}
    numbered = [{"index": i, **row} for i, row in enumerate(rows)]
    states = nvbench.benchmarks(numbered, gpu["ordinal"], meta.get("rule", {}))
    return {**content, "devices": nvbench.devices(gpu), "benchmarks": states}


_MOST = 2**28  # bytes of a record; a sweep of the whole ladder has a hundredth of it
_LOOK = 64  # bytes by which a file is told from a record
_LOST = "that file is none of harness's, and would be lost"
_WANTED = "give a file that a command of harness wrote with --json, whole"


def load(path: Path) -> Document:
    """Read a record file of this schema or an older one, its rows under ``rows`` whatever its shape.

    The file may be compressed by gzip or xz. Rows name kernels as they are named today. Raises UsageError
    for a file that cannot be read, is no record, or is of a newer schema.
    """
    try:
        content = json.loads(_unpacked(files.read(path, most=_MOST)), parse_constant=_no_number)
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise UsageError(f"damaged: {e}", where=str(path), hint=_WANTED) from None
    except ImportError:
        raise UsageError("compressed by xz, which this Python was built without", where=str(path)) from None
    except OSError as e:
        raise UsageError(f"cannot read: {e.strerror}", where=str(path), hint=_WANTED) from None
    except (ValueError, RecursionError) as e:
        raise UsageError(f"not JSON: {e}", where=str(path), hint=_WANTED) from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if type(schema) is not int or not isinstance(content.get("meta"), dict):
        raise UsageError("not a result file of harness", where=str(path), hint=_WANTED)
    if schema > SCHEMA:
        raise UsageError(
            f"written by a newer harness: schema {schema}, this one reads up to {SCHEMA}",
            where=str(path),
            hint="pip install --upgrade cuda-harness",
        )
    try:
        rows = content["rows"] if "rows" in content else nvbench.rows(content)
    except (KeyError, TypeError, ValueError) as e:
        raise UsageError(f"a damaged result file: {e!r}", where=str(path)) from None
    if damage := _damage(content, rows):
        raise UsageError(f"a damaged result file: {damage}", where=str(path), hint=_WANTED)
    blank, former = _BLANK.get(str(content.get("kind")), {}), catalog.former_names()
    return cast(Document, {**content, "rows": [{**blank, **_renamed(row, former)} for row in rows]})


_NAMING = ("kernel", "label", "others", "chosen", "against")  # keys under which a row names kernels


def _unpacked(data: bytes) -> bytes:
    """Return the content of a file that may be compressed. Raises ValueError if there is too much of it."""
    if data.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            content = file.read(_MOST + 1)
    elif data.startswith(b"\xfd7zXZ\0"):
        import lzma  # here, for a Python may have been built without it

        try:
            with lzma.LZMAFile(io.BytesIO(data)) as packed:
                content = packed.read(_MOST + 1)
        except lzma.LZMAError as e:
            raise EOFError(str(e)) from None
    else:
        return data
    if len(content) > _MOST:
        raise ValueError(f"it has more than {_MOST} bytes")
    return content


def _renamed(row: Mapping[str, Any], former: Mapping[str, str]) -> dict[str, Any]:
    """Return a row in which kernels have their names of today, in labels too (``24_wgmma_fp16 BM=64``)."""

    def of_today(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"\S+", lambda word: former.get(word[0], word[0]), value)
        if isinstance(value, list):
            return [of_today(inner) for inner in value]
        return _renamed(value, former) if isinstance(value, Mapping) else value

    return {key: of_today(value) if key in _NAMING else value for key, value in row.items()}


def _no_number(name: str) -> float:
    """Raise ValueError for NaN and infinity, which are not numbers of JSON."""
    raise ValueError(f"{name} is no number of JSON")


# The type of the rows of each kind that a command reads again, and the keys without which a row says nothing.
_KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "bench": (Row, ("kernel", "params", "shape", "status")),
    "tune": (Row, ("kernel", "params", "shape", "status")),
    "verify": (Row, ("kernel", "params", "status")),
    "check": (Row, ("kernel", "params", "status")),
    "run": (Row, ("kernel", "params", "status")),
    "profile": (ProfileRow, ("counters",)),
    "sass": (CodeRow, ()),
    "claims": (ClaimRow, ()),
}
# What a row of an older harness lacks, of what tables and pages show of every row.
_TIMED: Row = {"problem": "", "detail": "", "regime": None, "seconds": None, "noise": None, "times": []}
_BLANK: dict[str, Mapping[str, Any]] = {
    **dict.fromkeys(("bench", "tune"), _TIMED),
    "profile": {"label": "-", "diagnoses": []},
}


def _damage(content: Document, rows: Any) -> str:
    """Return what a row lacks, or has of a type that was never written; empty if the file is sound."""
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        return "its rows are no list of objects"
    if found := typed.damage(content["meta"], Meta, "meta"):
        return found
    kind, needed = _KINDS.get(str(content.get("kind")), (None, ()))
    if kind and isinstance(content["meta"].get("gpu"), str):
        return "meta.gpu is a text, not an object"
    for i, row in enumerate(rows) if kind else ():
        if row.get("times", ...) is None:  # as older harnesses wrote of a row without samples
            row["times"] = []
        if missing := [key for key in needed if key not in row]:
            return f"row {i} has no {missing[0]!r}"
        if found := typed.damage(row, kind):
            return f"row {i}: {found}"
        if kind is ClaimRow and len(row["outcomes"]) != len(row["measured"]):
            return f"row {i}: {len(row['outcomes'])} outcomes, {len(row['measured'])} measured"
    return ""


def _without_folders(value: Any) -> Any:
    """Remove the folders of paths in all strings, since records are passed on; the names of files stay."""
    if isinstance(value, str):
        return re.sub(r"(?<![\w.])/(?:[^\s/:'\"]+/)+", "", value)
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list) and not (value and isinstance(value[0], float)):
        return [_without_folders(inner) for inner in value]
    return value


def provenance(*, seed: int | None = None) -> Document:
    """Return command, time, versions and commit. Folders are removed from the arguments.

    `dirty` is True if the code is not that of the commit, and `differs` names the files that differ; which
    code ran is then known from `code_sha256` only. Both are None outside a checkout.
    """
    commit, differs = _commit(PACKAGE)
    return {
        "argv": [_program(), *_bare(sys.argv[1:])],
        "utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "harness": own_version(),
        "commit": commit,
        "dirty": None if differs is None else bool(differs),
        "differs": differs,
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _bare(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without folders, and without the address of a scheduler."""
    found = [re.sub(r"(^|=)[^=]*/", r"\1", argument) for argument in arguments]
    for i, argument in enumerate(found):
        if argument.startswith("--scheduler="):
            found[i] = "--scheduler=..."
        elif i and found[i - 1] == "--scheduler":
            found[i] = "..."
    return found


def write_json(path: Path, content: Document) -> None:
    """Write a record file, with each row or state on one line, so that raw samples do not hide the rest.

    It is written whole or not at all. Raises HarnessError if it cannot be written.
    """
    holders = [content] if "rows" in content else content["benchmarks"]
    key = "rows" if "rows" in content else "states"
    hollow = {**content, "benchmarks": [{**h, key: []} for h in holders]}
    text = json.dumps({**content, "rows": []} if key == "rows" else hollow, indent=1, allow_nan=False)
    for holder in holders:
        lines = ",\n".join("  " + json.dumps(line, allow_nan=False) for line in holder[key])
        text = text.replace(f'"{key}": []', f'"{key}": [\n{lines}\n ]', 1)
    files.write_file(path, text.encode() + b"\n")


def check_writable(*paths: Path | None, page: Path | None = None, read: Iterable[Path] = ()) -> None:
    """Raise HarnessError if one of the `paths`, or the `page`, could not be written; None is not looked at.

    Raises UsageError for what would be lost: a file that the command reads (`read`) or writes twice, a
    kernel's file, a record where a page is to go, as `report -o a.json b.json` says by a slip, and one that
    holds what harness does not write.
    """
    taken = {os.path.realpath(path) for path in read}
    for path in filter(None, (*paths, page)):
        real = os.path.realpath(path)
        suffixes = {path.suffix, Path(real).suffix}
        if suffixes & {".cu", ".ptx"}:
            raise UsageError("that is a kernel's name, not a record's", where=str(path), hint="--json r.json")
        if path is page and suffixes & {".json", ".jsonl"}:
            raise UsageError("that is a record's name, not a page's", where=str(path), hint="page.html")
        if real in taken:
            raise UsageError("this command reads that file, or writes it twice", where=str(path))
        taken.add(real)
        if _of_others(path):
            raise UsageError(_LOST, where=str(path), hint="name another, or remove it")
        files.check_writable(path)


def _of_others(path: Path) -> bool:
    """Return True for a file that begins with neither JSON nor markup; an empty one is nobody's."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(_LOOK).lstrip()[:1] not in (b"", b"{", b"[", b"<")
    except OSError:
        return False  # of which `check_writable` says more


def sha256(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def code_sha256() -> str:
    """Return the hash of the package's own modules, which identifies the code where there is no checkout."""
    modules = sorted(PACKAGE.rglob("*.py"), key=lambda p: p.relative_to(PACKAGE).as_posix())
    return sha256(b"".join(f.read_bytes() for f in modules))


def _version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _program() -> str:
    """Return ``harness``, however it was started, or the name of the script that uses it as a library."""
    started = Path(sys.argv[0])
    own = started.resolve() == PACKAGE / "__main__.py"
    return "harness" if own else started.name


def own_version(pyproject: Path | None = None) -> str | None:
    """Return the version of the checkout, or of the installed package: another version may be installed
    beside it.
    """
    try:
        project = tomllib.loads((pyproject or ROOT / "pyproject.toml").read_text())["project"]
        if project["name"] == _DISTRIBUTION:
            return str(project["version"])
    except (OSError, KeyError, ValueError):
        pass
    return _version(_DISTRIBUTION)


def _commit(package: Path) -> tuple[str | None, list[str] | None]:
    """Return the checkout's commit, and the files of code and kernels that differ from it, new ones included.

    Both are None outside a checkout.
    """

    def git(*args: str) -> str:
        return tools.run(["git", "-C", package.parent, *args], "").stdout

    try:
        top = git("rev-parse", "--show-toplevel").strip()
    except HarnessError:  # there is no git
        return None, None
    if not top or Path(top).resolve() != package.parent.resolve():
        return None, None  # no checkout, or that of another project in which this one is installed
    changed = git("status", "--porcelain", "--no-renames", "-uall", "-z", "--", package.name, "cu", "ptx")
    return git("rev-parse", "HEAD").strip(), sorted(line[3:] for line in changed.split("\0") if line)
