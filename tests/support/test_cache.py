"""The store of builds: whole entries or none, whoever else writes and whatever broke before."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.support import cache as cache_module
from harness.support.cache import Cache, CacheWarning, default_root, digest

KEY = digest("an entry")
FILES = {"kernel.cubin": bytes(range(256)) * 40, "log.txt": b"", "source.cu": b"int x;\n"}


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def entry(store: Cache, key: str = KEY) -> Path:
    assert store.root is not None
    return store.root / key[:2] / key


def everything(store: Cache) -> list[Path]:
    assert store.root is not None
    own = {store.root / name for name in ("CACHEDIR.TAG", ".trimmed")}
    return sorted(set(store.root.rglob("*")) - own)


# Entries


def test_round_trip(store: Cache) -> None:
    assert store.get(KEY) is None
    store.put(KEY, FILES)
    assert store.get(KEY) == FILES
    assert Cache(store.root).get(KEY) == FILES  # another process, later
    assert store.get(digest("another")) is None


def test_nothing_but_the_entry_is_left(store: Cache) -> None:
    store.put(KEY, FILES)
    store.put(KEY, FILES)  # the second finds it there
    folder = entry(store)
    assert everything(store) == sorted(
        [folder.parent, folder, *(folder / n for n in FILES), folder / "manifest.json"]
    )


def test_the_first_of_two_writers_stays(store: Cache) -> None:
    store.put(KEY, FILES)
    store.put(KEY, {"kernel.cubin": b"later"})
    assert store.get(KEY) == FILES


def test_no_root_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Cache(None)
    store.put(KEY, FILES)
    assert store.get(KEY) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("ab",), ("a", "b")),
        (("a", ""), ("a",)),
        (("", "a"), ("a", "")),
        (("a\0b",), ("a", "b")),
        ((b"\x01" + bytes(7) + b"a",), ("a",)),  # a part that looks like a boundary
    ],
)
def test_digest_keeps_boundaries(one: tuple[str | bytes, ...], other: tuple[str | bytes, ...]) -> None:
    assert digest(*one) != digest(*other)


def test_digest_is_the_same_for_text_and_its_bytes() -> None:
    assert digest("é", b"x") == digest("é".encode(), "x")
    assert len(digest()) == 64


# Damage: each of these turns a good entry into a bad one


def truncate(folder: Path) -> None:
    (folder / "kernel.cubin").write_bytes(FILES["kernel.cubin"][:-1])


def flip_a_bit(folder: Path) -> None:
    data = bytearray(FILES["kernel.cubin"])
    data[5000] ^= 1
    (folder / "kernel.cubin").write_bytes(data)


def lose_a_file(folder: Path) -> None:
    (folder / "log.txt").unlink()


def lose_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def lose_everything(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def become_a_file(folder: Path) -> None:
    lose_everything(folder)
    folder.rmdir()
    folder.write_text("not a folder")


def hold_a_folder_for_a_file(folder: Path) -> None:
    (folder / "log.txt").unlink()
    (folder / "log.txt").mkdir()


def become_a_dangling_link(folder: Path) -> None:
    lose_everything(folder)
    folder.rmdir()
    folder.symlink_to(folder.parent / "nowhere")


def manifest(content: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / "manifest.json").write_bytes(data)

    return write


def name_a_file_outside(folder: Path) -> None:
    (folder.parent / "outside").write_bytes(b"secret")
    manifest({"../outside": sha256(b"secret").hexdigest()})(folder)


def name_a_file_by_its_full_path(folder: Path) -> None:
    (folder.parent / "outside").write_bytes(b"secret")
    manifest({str(folder.parent / "outside"): sha256(b"secret").hexdigest()})(folder)


HASHES = {name: sha256(data).hexdigest() for name, data in FILES.items()}
DAMAGE = {
    "truncated": truncate,
    "bit-flipped": flip_a_bit,
    "file-lost": lose_a_file,
    "manifest-lost": lose_the_manifest,
    "empty-folder": lose_everything,
    "a-file": become_a_file,
    "folder-for-file": hold_a_folder_for_a_file,
    "manifest-empty": manifest(b""),
    "manifest-cut": manifest(json.dumps(HASHES).encode()[:-20]),
    "manifest-binary": manifest(b"\xff\xfe\x00"),
    "manifest-list": manifest(list(FILES)),
    "manifest-empty-list": manifest([]),
    "manifest-empty-dict": manifest({}),
    "manifest-text": manifest(""),
    "manifest-number": manifest(7),
    "manifest-null": manifest(None),
    "manifest-no-hashes": manifest(dict.fromkeys(FILES)),
    "manifest-hash-off": manifest({**HASHES, "log.txt": HASHES["source.cu"]}),
    "manifest-nul-name": manifest({**HASHES, "\0": ""}),
    "manifest-parent": manifest({"..": HASHES["log.txt"]}),
    "manifest-itself": manifest({".": HASHES["log.txt"]}),
    "manifest-outside": name_a_file_outside,
    "manifest-absolute": name_a_file_by_its_full_path,
}
if sys.platform != "win32":
    DAMAGE["dangling-link"] = become_a_dangling_link


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_absent_and_replaced(store: Cache, damage: Callable[[Path], None]) -> None:
    store.put(KEY, FILES)
    folder = entry(store)
    damage(folder)
    assert store.get(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(KEY, FILES)
    assert store.get(KEY) == FILES
    assert {p.name for p in folder.parent.iterdir()} <= {KEY, "outside"}  # nothing moved aside stays there


# Two processes at once


HAMMERED = [digest(str(i)) for i in range(4)]


def hammer(root: Path, seed: int, start: Any, until: float) -> None:
    """Put, get and break entries; ends with an exception (exit code 1) when one is not whole."""
    warnings.simplefilter("error")
    rng = random.Random(seed)
    store = Cache(root)
    start.wait()
    stop = time.monotonic() + until
    while time.monotonic() < stop:
        key = rng.choice(HAMMERED)
        action = rng.random()
        if action < 0.45:
            writer = f"{seed} {rng.random()}".encode()
            store.put(key, {name: writer * size for name, size in (("a", 1), ("b", 1000), ("c", 40))})
        elif action < 0.95:
            files = store.get(key)
            if files is not None and (files["a"] * 1000, files["a"] * 40) != (files["b"], files["c"]):
                raise AssertionError("files of two writers in one entry")
        else:
            with contextlib.suppress(OSError):
                os.truncate(entry(store, key) / rng.choice(["a", "b", "manifest.json"]), 0)


@pytest.mark.slow
def test_two_processes_on_the_same_keys(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    workers = [spawn.Process(target=hammer, args=(tmp_path, seed, start, 1.5)) for seed in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    store = Cache(tmp_path)
    assert [p for p in everything(store) if p.name.startswith(".")] == []
    for key in HAMMERED:
        store.put(key, FILES)
        assert store.get(key) is not None


KILLED = """
import sys, time
from pathlib import Path
from harness.support.cache import Cache

root, key, stops_at, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
real = getattr(Path, stops_at)

def stopping(self, *args):
    global count
    count -= 1
    if count < 0:
        print("now", flush=True)
        time.sleep(60)
    return real(self, *args)

cache = Cache(root)
setattr(Path, stops_at, stopping)
cache.put(key, {"kernel.cubin": b"half" * 100, "log.txt": b"of", "source.cu": b"it"})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
@pytest.mark.parametrize(
    ("stops_at", "count"),
    [("write_bytes", 0), ("write_bytes", 2), ("write_text", 0), ("rename", 0)],
    ids=["first-file", "last-file", "manifest", "rename"],
)
def test_a_killed_writer_leaves_a_usable_cache(tmp_path: Path, stops_at: str, count: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path, KEY, stops_at, str(count)], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    with writer.stdout:
        assert writer.stdout.readline() == b"now\n"
    writer.send_signal(signal.SIGKILL)
    assert writer.wait(10) == -signal.SIGKILL

    store = Cache(tmp_path)
    assert store.get(KEY) is None
    store.put(KEY, FILES)
    assert store.get(KEY) == FILES


# A root that cannot be used


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return refuse


def goes_on_silently(store: Cache) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            store.put(KEY, FILES)
            assert store.get(KEY) is None


@pytest.mark.parametrize("below", ["", "deeper/still"], ids=["itself-a-file", "under-a-file"])
def test_a_root_that_is_a_file(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.warns(CacheWarning, match="HARNESS_CACHE_DIR") as said:
        store = Cache(tmp_path / "file" / below)
    assert len(said) == 1
    assert str(tmp_path / "file") in str(said[0].message)
    assert said[0].filename == __file__  # points at who asked for it
    goes_on_silently(store)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("function", ["pathlib.Path.mkdir", "tempfile.mkdtemp"])
def test_a_root_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    """Read-only directories are no test: root may write those."""
    monkeypatch.setattr(function, refusing(code))
    with pytest.warns(CacheWarning, match=os.strerror(code)) as said:
        store = Cache(tmp_path / "cache")
    assert len(said) == 1
    goes_on_silently(store)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("function", ["mkdir", "write_bytes", "write_text", "rename"])
def test_a_disk_that_fails_later(
    store: Cache, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    root = store.root
    assert root is not None
    monkeypatch.setattr(Path, function, refusing(code))
    with pytest.warns(CacheWarning, match=os.strerror(code)) as said:
        store.put(KEY, FILES)
    assert len(said) == 1
    assert [p for p in root.rglob("*") if p.is_file()] == [root / "CACHEDIR.TAG"]  # what was begun is gone
    goes_on_silently(store)


def test_an_entry_that_cannot_be_read_is_absent(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(KEY, FILES)
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "opened", refusing(errno.EACCES))
        assert store.get(KEY) is None
    assert store.get(KEY) == FILES


# Where it lies


def test_the_root_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", "/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert default_root() == Path("/a/b")
    monkeypatch.setenv("HARNESS_CACHE_DIR", "~/mine")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    assert default_root() == Path("/home/me/mine")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has its own place")
@pytest.mark.parametrize("unset", ["", None])
def test_the_root_of_a_user(monkeypatch: pytest.MonkeyPatch, unset: str | None) -> None:
    def leave(name: str) -> None:
        monkeypatch.delenv(name, raising=False) if unset is None else monkeypatch.setenv(name, unset)

    leave("HARNESS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert default_root() == Path("/c/harness")
    leave("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_root() == Path("/home/me/.cache/harness")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX user database")
def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container under an arbitrary user id."""
    for name in ("HARNESS_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(_uid: int) -> Any:
        raise KeyError("uid not found")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.warns(CacheWarning, match="HARNESS_CACHE_DIR"):
        assert Cache(default_root()).root is None


def test_the_users_cache_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "user"))
    cache_module.default.cache_clear()
    try:
        assert cache_module.default().root == tmp_path / "user"
        assert cache_module.default() is cache_module.default()
    finally:
        cache_module.default.cache_clear()


# Whose it is


AS_ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="giving files away")


@AS_ROOT
@pytest.mark.parametrize("name", ["manifest.json", "kernel.cubin"])
def test_an_entry_of_somebody_else_is_absent(store: Cache, name: str) -> None:
    """A cubin was planted in a cache that others can write."""
    store.put(KEY, FILES)
    os.chown(entry(store) / name, 65534, 65534)
    assert store.get(KEY) is None
    os.chown(entry(store) / name, 0, 0)
    assert store.get(KEY) == FILES  # the control


@AS_ROOT
def test_a_root_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.warns(CacheWarning, match="belongs to another user, 65534"):
        store = Cache(tmp_path)
    goes_on_silently(store)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_root_that_others_may_write_is_not_used(tmp_path: Path, mode: int) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r").chmod(mode)
    with pytest.warns(CacheWarning, match="chmod go-w"):
        store = Cache(tmp_path / "r")
    goes_on_silently(store)
    assert (tmp_path / "r").stat().st_mode & 0o7777 == mode and not list((tmp_path / "r").iterdir())
    (tmp_path / "r").chmod(0o755)
    assert Cache(tmp_path / "r").root  # the control


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_a_new_root_is_its_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Cache(tmp_path / "deep" / "cache")
        store.put(KEY, FILES)
    finally:
        os.umask(before)
    assert store.root is not None and store.root.stat().st_mode & 0o777 == 0o700
    assert entry(store).stat().st_mode & 0o077 == 0


def test_the_tag_is_only_in_a_folder_of_its_own(tmp_path: Path) -> None:
    signature = b"Signature: 8a477f597d28d172789f06886806bc55"
    assert (tmp_path / "new").exists() is False
    Cache(tmp_path / "new")
    assert (tmp_path / "new" / "CACHEDIR.TAG").read_bytes().startswith(signature)
    Cache(tmp_path)  # which holds something else
    assert not (tmp_path / "CACHEDIR.TAG").exists()


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_tag_that_could_not_be_written_comes_with_a_later_run(tmp_path: Path, left: str) -> None:
    """The directory of a full disk, or of a writer that was killed."""
    Cache(tmp_path / "cache").put(KEY, FILES)
    tag, temporary = tmp_path / "cache" / "CACHEDIR.TAG", tmp_path / "cache" / ".probe-of-another"
    whole = tag.read_bytes()
    temporary.mkdir()
    tag.unlink() if left == "nothing" else tag.write_bytes(b"")
    Cache(tmp_path / "cache")
    assert tag.read_bytes() == whole
    assert [p.name for p in temporary.parent.glob(".probe-*")] == [temporary.name]
    tag.unlink()
    (tmp_path / "cache" / "thesis.tex").touch()
    Cache(tmp_path / "cache")
    assert not tag.exists()


def test_a_tag_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(path: Path, data: bytes) -> int:
        path.open("wb").write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.warns(CacheWarning, match="No space left"):
        Cache(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


# How much it takes


def fill(store: Cache, count: int) -> list[str]:
    """Store entries of 100 kB, the first of which was used the longest time ago."""
    keys = [digest(str(i)) for i in range(count)]
    for i, key in enumerate(keys):
        store.put(key, {"a": bytes(100_000)})
        os.utime(entry(store, key) / "manifest.json", (1000 + i, 1000 + i))
    return keys


def test_what_was_not_used_for_the_longest_time_goes_first(store: Cache) -> None:
    keys = fill(store, 6)
    assert store.get(keys[0]) is not None  # used again: it is the newest now
    assert [e.folder.name for e in store.entries()] == [*keys[1:], keys[0]]
    assert store.trim(250_000) >= 350_000
    assert [e.folder.name for e in store.entries()] == [keys[5], keys[0]]
    assert store.trim(10**9) == 0 and len(store.entries()) == 2
    store.trim(0)
    assert [p for p in everything(store) if p.is_file()] == []


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "four", "1e999"])
def test_a_limit_that_is_no_size(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_GIB", text)
    with pytest.raises(UsageError, match="is no size"):
        cache_module.limit()


def test_the_limit_is_kept_while_entries_are_written(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_GIB", str(1e6 / 2**30))
    keys = fill(store, 30)
    assert sum(e.size for e in store.entries()) <= 1.1e6
    assert store.get(keys[-1]) is not None and store.get(keys[0]) is None


def test_without_the_limit_they_would_stay(store: Cache) -> None:
    keys = fill(store, 30)
    assert len(store.entries()) == 30 and store.get(keys[0]) is not None


@pytest.mark.parametrize("when", [1000, 4_000_000_000], ids=["long ago", "before the clock was set back"])
def test_what_killed_writers_left_goes_when_it_is_old(store: Cache, when: int) -> None:
    store.put(KEY, FILES)
    left = [entry(store).with_name(f".{KEY[:8]}-x"), store.root / ".probe-x", store.root / ".mine"]  # type: ignore[operator]
    for folder in left:
        (folder / "deep").mkdir(parents=True)
    store.trim(10**9)
    assert all(folder.exists() for folder in left)  # of a writer that may be at work
    for folder in left:
        os.utime(folder, (when, when))
    store.trim(10**9)
    assert [folder.exists() for folder in left] == [False, False, True] and store.get(KEY) == FILES


def test_only_entries_are_removed(tmp_path: Path) -> None:
    """A root that is somebody's folder of other things, too."""
    for name in ("notes.txt", "ab/notes.txt", "tune/journal.jsonl", f"zz/{KEY}/x", f"{KEY[:2]}/{KEY}x/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "cd").symlink_to(tmp_path / "zz")
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    store = Cache(tmp_path)
    store.put(KEY, FILES)
    store.trim(0)
    assert store.get(KEY) is None
    assert {p for p in tmp_path.rglob("*") if p.is_file()} - {tmp_path / ".trimmed"} == before
