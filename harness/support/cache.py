"""A content-addressed store of small groups of files, safe under concurrent writers and interrupted writes.

An entry is a folder ``<key[:2]>/<key>/`` with the named files and a manifest of their SHA-256 sums. It is
written to a temporary folder beside its final place and then renamed, so that a reader sees all of it or
nothing. An entry that does not match its manifest (after a crash, a full disk, an edit) counts as absent and
is replaced at the next write.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

_MANIFEST = "manifest.json"
_ATTEMPTS = 5  # retries to publish an entry while other writers replace a damaged one


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


class Cache:
    """A cache in the directory `root`, which is created if it does not exist.

    With `root` None it stores nothing. If `root` cannot be used, it warns once (CacheWarning) and stores
    nothing from then on.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root
        if root is not None:
            try:
                root.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=root):
                    pass  # fail now, not after a minute of compiling, if nothing can be written here
            except OSError as e:
                self._give_up(e)

    def get(self, key: str) -> dict[str, bytes] | None:
        """Return the files of the entry `key` by name, or None if it is absent, damaged or empty."""
        root = self.root  # another thread may set it to None meanwhile
        if root is None:
            return None
        folder = self._folder(root, key)
        try:
            manifest = json.loads((folder / _MANIFEST).read_bytes())
            if not isinstance(manifest, dict) or any(name != Path(name).name for name in manifest):
                return None
            files = {name: (folder / name).read_bytes() for name in manifest}
        except (OSError, ValueError, RecursionError):
            return None
        intact = all(hashlib.sha256(data).hexdigest() == manifest[name] for name, data in files.items())
        return files if files and intact else None

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


def _warn(root: Path | None, why: str) -> None:
    """Issue a CacheWarning about the directory `root`, with the reason."""
    warnings.warn(
        f"cannot use the cache directory {root} ({why}): compiling without it; "
        "set HARNESS_CACHE_DIR to a directory that can be written",
        CacheWarning,
        stacklevel=4,
    )
