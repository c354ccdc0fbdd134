"""A content-addressed store of small groups of files, safe under concurrent writers and interrupted writes.

An entry is a folder ``<key[:2]>/<key>/`` with the named files and a manifest of their SHA-256 sums. It is
written to a temporary folder beside its final place and then renamed, so that a reader sees all of it or
nothing. An entry that does not match its manifest (after a crash, a full disk, an edit) counts as absent and
is replaced at the next write.

Code from it is run without another look, so it has to be this user's own: a directory that somebody else owns
or may write is not used, and an entry with a file of somebody else counts as absent. Entries that were not
used for the longest time are removed where all take more than `limit` bytes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.support.files import opened

_MANIFEST = "manifest.json"
_ATTEMPTS = 5  # retries to publish an entry while other writers replace a damaged one
_ENTRY = re.compile(r"[0-9a-f]{64}\Z")
_BEGUN = re.compile(r"\.([0-9a-f]{8}|damaged|probe)-")  # temporary folders; those of a killed writer stay
_LIMIT = 4.0  # GiB of all entries, unless HARNESS_CACHE_GIB says otherwise
_STALE = 3600  # seconds after which a temporary folder is nobody's, and between two looks at the size
_OURS = re.compile(r"[0-9a-f]{2}|tune|\.trimmed|CACHEDIR\.TAG")  # with _BEGUN, all that lies in the root
_TAG = "CACHEDIR.TAG"  # see https://bford.info/cachedir: backups leave the directory out
_SIGNATURE = """Signature: 8a477f597d28d172789f06886806bc55
# The cache of compiled kernels of harness. It may be deleted at any time: `harness cache --clean`.
"""


class CacheWarning(UserWarning):
    """The cache directory cannot be used. Everything still works, but nothing is reused."""


def default_root() -> Path | None:
    """Return the cache directory: ``$HARNESS_CACHE_DIR``, or else ``harness`` in the user's cache directory.

    Return None, with a CacheWarning, if the path needs a home directory and the user has none.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(os.environ.get("HARNESS_CACHE_DIR") or Path(base, "harness"))
    try:
        return root.expanduser()
    except RuntimeError as e:  # a user id without a name and HOME unset, as in some containers
        _warn(root, str(e))
        return None


def limit() -> int:
    """Return how many bytes all entries may take: ``HARNESS_CACHE_GIB``, or else 4 GiB."""
    text = os.environ.get("HARNESS_CACHE_GIB", "")
    try:
        found = int(float(text or _LIMIT) * 2**30)
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise UsageError(f"HARNESS_CACHE_GIB={text} is no size", hint="a number of GiB, such as 4")
    return found


@functools.cache
def default() -> Cache:
    """Return the user's cache; it is opened once per process."""
    return Cache(default_root())


def digest(*parts: str | bytes) -> str:
    """Return the SHA-256, in hex, of the parts and their lengths: ("ab", "c") and ("a", "bc") differ."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


@dataclass(frozen=True)
class Entry:
    """One entry of a cache: its folder, its size in bytes, and when it was last used (Unix time)."""

    folder: Path
    size: int
    used: float


class Cache:
    """A cache in the directory `root`, which is created for this user only if it does not exist.

    With `root` None it stores nothing. If `root` cannot be used, or others may write there, it warns once
    (CacheWarning) and stores nothing from then on.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._written = 0  # bytes since the last look at the size
        if root is not None:
            try:
                new = not root.exists()
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check_owner(root)
                tagged = not new and _tagged(root)
                # Fail now, not after a minute of compiling, if nothing can be written here.
                with tempfile.TemporaryDirectory(prefix=".probe-", dir=root) as probe:
                    if not tagged:
                        Path(probe, _TAG).write_bytes(_SIGNATURE.encode())
                        Path(probe, _TAG).rename(root / _TAG)  # whole, or not there
            except OSError as e:
                self._give_up(e)

    def get(self, key: str) -> dict[str, bytes] | None:
        """Return the files of the entry `key` by name, or None if it is absent, damaged, empty or somebody
        else's.
        """
        root = self.root  # another thread may set it to None meanwhile
        if root is None:
            return None
        folder = self._folder(root, key)
        try:
            manifest = json.loads(_own(folder / _MANIFEST))
            if not isinstance(manifest, dict) or any(name != Path(name).name for name in manifest):
                return None
            found = {name: _own(folder / name) for name in manifest}
        except (OSError, ValueError, RecursionError, UsageError):
            return None
        intact = all(hashlib.sha256(data).hexdigest() == manifest[name] for name, data in found.items())
        if not found or not intact:
            return None
        with contextlib.suppress(OSError):
            os.utime(folder / _MANIFEST)
        return found

    def entries(self) -> list[Entry]:
        """Return all entries, those first that were not used for the longest time."""
        found = []
        for folder in self._folders(_ENTRY):
            with contextlib.suppress(OSError):  # another process has just removed it
                used = (folder / _MANIFEST).stat().st_mtime if (folder / _MANIFEST).exists() else 0.0
                found.append(Entry(folder, sum(p.stat().st_size for p in folder.iterdir()), used))
        return sorted(found, key=lambda e: e.used)

    def trim(self, most: int) -> int:
        """Remove what was not used for the longest time until the entries take at most `most` bytes, and what
        killed writers have left; return the number of bytes removed.
        """
        found = self.entries()
        over = sum(e.size for e in found) - most
        removed = 0
        for entry in found:
            if removed >= over:
                break
            self._discard(entry.folder)
            removed += entry.size
        for folder in self._folders(_BEGUN):
            with contextlib.suppress(OSError):
                if _stale(folder):
                    shutil.rmtree(folder, ignore_errors=True)
        return removed

    def _folders(self, pattern: re.Pattern[str]) -> list[Path]:
        """Return the folders whose name matches, in the root and in the folders of entries."""
        if self.root is None:
            return []
        places = [self.root, *(p for p in self.root.glob("[0-9a-f][0-9a-f]") if not p.is_symlink())]
        found = []
        for place in places:
            with contextlib.suppress(OSError):
                found += [p for p in place.iterdir() if pattern.match(p.name) and p.is_dir()]
        return [p for p in found if not p.is_symlink()]

    def _keep_bounded(self, root: Path, size: int) -> None:
        """Look at the size of all entries once an hour, and after a twentieth of the limit was written."""
        most = limit()
        self._written += size
        stamp = root / ".trimmed"
        if self._written > most / 20 or not stamp.exists() or _stale(stamp):
            self._written = 0
            stamp.touch()
            if sum(e.size for e in self.entries()) > most:
                self.trim(most * 9 // 10)

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Store `files` (name -> content) as the entry `key`.

        A file system error is not raised: the cache warns once, and from then on stores nothing and finds
        nothing.
        """
        root = self.root
        if root is None:
            return
        final = self._folder(root, key)
        temporary = None
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=final.parent))
            manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
            for name, data in files.items():
                (temporary / name).write_bytes(data)
            (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1))
            self._publish(temporary, final, key)
            self._keep_bounded(root, sum(map(len, files.values())))
        except OSError as e:
            self._give_up(e)
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def _publish(self, temporary: Path, final: Path, key: str) -> None:
        """Rename `temporary` to `final`, unless another writer has already put an intact entry there."""
        for attempt in range(_ATTEMPTS):
            try:
                temporary.rename(final)
                return
            except OSError:
                if self.get(key) is not None:
                    return  # another writer was first; the same key means the same content
                if attempt == _ATTEMPTS - 1:
                    raise
                self._discard(final)

    @staticmethod
    def _discard(final: Path) -> None:
        """Move a damaged entry out of the way and delete it; another process may have done so first."""
        grave = Path(tempfile.mkdtemp(prefix=".damaged-", dir=final.parent))
        with contextlib.suppress(FileNotFoundError):
            final.rename(grave / "entry")
        shutil.rmtree(grave, ignore_errors=True)

    @staticmethod
    def _folder(root: Path, key: str) -> Path:
        """Return the folder of the entry `key`."""
        return root / key[:2] / key

    def _give_up(self, error: OSError) -> None:
        """Stop using the cache, and warn the first time."""
        root, self.root = self.root, None
        if root is not None:
            _warn(root, error.strerror or str(error))


def _check_owner(root: Path) -> None:
    """Raise PermissionError if the directory is another user's, or if others may write there."""
    if not hasattr(os, "geteuid"):
        return
    about = root.stat()
    if about.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to another user, {about.st_uid}")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "others may write there; chmod go-w makes it yours")


def _tagged(root: Path) -> bool:
    """Return whether a directory that was there before has its tag, or must not get one.

    One that holds more than a cache must not, or backups would leave the rest out, too. A tag is missing
    where its writer failed or was killed.
    """
    names = [path.name for path in root.iterdir()]
    if not names or any(not _OURS.fullmatch(name) and not _BEGUN.match(name) for name in names):
        return True
    return _TAG in names and (root / _TAG).stat().st_size > 0


def _stale(path: Path) -> bool:
    """Return True if `path` was changed more than `_STALE` seconds ago, or in a future that long."""
    return abs(time.time() - path.stat().st_mtime) > _STALE


def _own(path: Path) -> bytes:
    """Return the content of a regular file of this user. Raises PermissionError for somebody else's."""
    with opened(path) as file:
        if hasattr(os, "geteuid") and os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another user's", str(path))
        return file.read()


def _warn(root: Path | None, why: str) -> None:
    """Issue a CacheWarning about the directory `root`, with the reason."""
    warnings.warn(
        f"cannot use the cache directory {root} ({why}): compiling without it; "
        "set HARNESS_CACHE_DIR to a directory that can be written",
        CacheWarning,
        stacklevel=4,
    )
