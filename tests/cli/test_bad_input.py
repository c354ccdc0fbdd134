"""Command lines and kernel files drawn at random: an exit code and words, no traceback, no silence."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.cli import VERBS, main
from harness.errors import HarnessError
from harness.kernels import spec
from shared.command import harness, no_gpu
from shared.kernels import KERNEL

# Not drawn: what works for minutes (its sizes are drawn elsewhere), and what would write outside the folder.
SLOW = ("bench", "check", "doctor", "explain", "judge", "profile", "selftest", "tune", "verify")
QUICK = [verb for verb in VERBS if verb not in SLOW]
VALUES = (
    "", " ", "0", "-1", "1", "1e308", "nan", "inf", "9" * 40, "TILE=16", "TILE=", "=", "N=8",
    "N=[8,9]", "N=[", "N=[" * 50, "M=1e9", "N=0", "tiled", "03_tiled", "no_such", "[", "../..",
    "/dev/null", "/dev/zero", "\x1b[31m", "\u4e2d", "\udcff", "sm_90a", "sm_1", "sm_", "fp16",
    "fp999", "-", "--", "--md", "$(x)", "emulator", "GPU-x", "FFMA >= ", "LDS.128 in loop",
    "no LDL", "registers <= 0", "x" * 5000, "bad.json", "k.cu",
)  # fmt: skip


def drawn_line(draw: random.Random) -> list[str]:
    """Return a command line of a verb with some of its options, their values and other words."""
    verb = draw.choice(QUICK)
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    options = [p for p in command.params if isinstance(p, click.Option) and p.name not in ("output", "plots")]
    words = [verb, *(["tiled"] if verb in ("build", "sass") else [])]  # not the whole ladder
    for _ in range(draw.randint(0, 4)):
        if options and draw.random() < 0.6:
            option = draw.choice(options)
            words.append(draw.choice(option.opts))
            if not option.is_flag or draw.random() < 0.05:
                words.append("out.json" if option.name == "json_file" else draw.choice(VALUES))
        else:
            words.append(draw.choice(VALUES))
    return words


def ends_with_words(words: list[str]) -> None:
    result = harness(*words)  # raises what is no exit
    assert result.exit_code in (0, 1, 2, 3), (words, result.output)
    assert result.output.strip(), (words, "silent")
    assert not set(result.output) & set("\x1b\x07\x08"), words


TOKENS = (
    "[", "]", "{", "}", '"', "'", "=", ",", "\n// ", "\n", "//", "///", "/// kernel", "#", "\x00",
    "\x1b", "\ufeff", "1", "-1", "9" * 400, "1e999", "nan", "true", "TILE", "BM", "block", "tile",
    "entry", "params", "sass", "grid", "* ", "/ 0", "% 0", "** 9", "<< 99999", "min(", "(" * 300,
    "[" * 300, "x." * 200 + "y", '"""', "1979-05-27", "problem", '"gemm"', '"../x.py:P"', "dtype",
    '["fp16", "fp16"]', "expect", "predict", "tensormaps", "\u202e",
)  # fmt: skip


def drawn_kernel(draw: random.Random) -> str:
    """Return a kernel file with up to four changes of its front matter."""
    text = KERNEL.format(title="A kernel", extra="", body="")
    end = text.rindex("// ///") + 6
    front, rest = text[:end], text[end:]
    for _ in range(draw.randint(0, 4)):
        at = draw.randrange(len(front))
        match draw.randrange(4):
            case 0:
                front = front[:at] + draw.choice(TOKENS) + front[at:]
            case 1:
                front = front[:at] + front[at + draw.randint(1, 12) :]
            case 2:
                lines = front.splitlines(keepends=True)
                draw.shuffle(lines)
                front = "".join(lines)
            case _:
                front = front[:at] + draw.choice(TOKENS) + front[at + draw.randint(1, 8) :]
        if not front:
            break
    return front + rest


def reads_or_says_why(text: str, path: Path) -> bool:
    """Read a kernel's text and evaluate what it says; return True if it is sound."""
    try:
        kernel = spec.parse(text, path)
        for variant in kernel.variants({}, defaults=True):
            _ = variant.block, variant.tile, variant.shared, variant.label
    except HarnessError as e:
        assert str(e).strip() and len(str(e)) < 20_000
        return False
    return True


RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**32)


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("[" * 100_000)
    (tmp_path / "k.cu").write_text("no front matter")
    return


@pytest.mark.parametrize("most", ["1e308", "4", "0"])
def test_a_cache_of_any_size(most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than any disk has leaves all, and is no infinity of bytes."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    result = harness("cache", "--to", most)
    assert result.exit_code == 0 and "removed 0 entries" in result.output


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu", "_folder")
@settings(RELAXED, max_examples=40)
@given(seed=SEEDS)
def test_command_lines(seed: int) -> None:
    ends_with_words(drawn_line(random.Random(seed)))


@settings(RELAXED, max_examples=300)
@given(seed=SEEDS)
def test_kernel_files(seed: int) -> None:
    reads_or_says_why(drawn_kernel(random.Random(seed)), Path("k.cu"))


def test_the_draws_are_of_use() -> None:
    """The control: some kernels stay sound and most do not; without changes it is sound."""
    assert reads_or_says_why(KERNEL.format(title="A kernel", extra="", body=""), Path("k.cu"))
    sound = sum(reads_or_says_why(drawn_kernel(random.Random(seed)), Path("k.cu")) for seed in range(200))
    assert 5 < sound < 150


@pytest.mark.exhaustive
@pytest.mark.usefixtures("no_gpu", "_folder")
def test_thousands_of_command_lines() -> None:
    first = random.SystemRandom().randrange(2**32)
    for seed in range(first, first + 3000):
        ends_with_words(drawn_line(random.Random(seed)))


@pytest.mark.exhaustive
def test_thousands_of_kernel_files() -> None:
    first = random.SystemRandom().randrange(2**32)
    for seed in range(first, first + 20_000):
        reads_or_says_why(drawn_kernel(random.Random(seed)), Path("k.cu"))


__all__ = ["no_gpu"]


PLAIN = b"__global__ void k(float* x, int n) { int i = threadIdx.x; if (i < n) x[i] = 1; }\n"
FILES = {
    "ok.cu": PLAIN,
    "ok.txt": b"mine",
    "empty.cu": b"",
    "empty.ptx": b"",
    "empty.json": b"",
    "empty.cubin": b"",
    "nul.cu": PLAIN.replace(b"x[i]", b"x[\0i]"),
    "binary.cu": bytes(range(256)) * 16,
    "binary.ptx": bytes(range(256)) * 16,
    "binary.json": bytes(range(256)) * 16,
    "utf16.cu": PLAIN.decode().encode("utf-16"),
    "torn.json": b'{"schema": 2, "rows": [{"kernel": "03',
    "torn.ptx": b".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 k_p",
    "torn.cubin": b"\x7fELF\x02\x01\x01" + bytes(200),
    "list.json": b"[1, 2]",
    "rows.json": b'{"rows": [5, null]}',
    "deep.json": b"[" * 100_000,
    "open.cu": b"// T\n//\n// /// kernel\n// entry = 1\n" + PLAIN,
    "types.cu": b"// T\n//\n// /// kernel\n// entry = 5\n// block = -1\n// ///\n" + PLAIN,
    "huge.cu": b'// T\n//\n// /// kernel\n// entry = "k"\n// block = [99999999999]\n// tile = 1\n// ///\n'
    + PLAIN,
}
KERNELS = (
    "empty.cu",
    "nul.cu",
    "binary.cu",
    "binary.ptx",
    "empty.ptx",
    "torn.ptx",
    "utf16.cu",
    "open.cu",
    "types.cu",
    "huge.cu",
    "folder.cu",
    "loop.cu",
    "dangling.cu",
    "missing.cu",
    "device.cu",
    "folder",
    "",
)
RECORDS = (
    "torn.json",
    "list.json",
    "rows.json",
    "deep.json",
    "binary.json",
    "empty.json",
    "folder",
    "loop.cu",
    "missing.json",
    "device.cu",
)
ATTACKS = [
    *(["check", name] for name in KERNELS),
    *([verb, name] for verb in ("build", "sass", "list", "judge", "verify") for name in KERNELS[4::3]),
    *([verb, name] for verb in ("history", "report", "replay", "choose") for name in RECORDS),
    *(["compare", name, name] for name in RECORDS),
    *(["explain", "tiled", "naive", "--record", name] for name in RECORDS[:3]),
    *(["profile", "tiled", "--from", name] for name in RECORDS[::2]),
    *(["sass", name] for name in ("empty.cubin", "torn.cubin", "list.json", "ok.txt")),
    *(["check", "ok.cu", *more.split(" ")] for more in (
        "--seconds 1e308", "--seconds 0", "--seconds nan", "--sms 0", "--budget -5", "--max-ways 0",
        "--seed -1", "--shared -1", "--grid 1,2,3,4", "--block 0", "--block 99999999999", "--entry no",
        "--entry ", "-a n=-1", "-a y=5", "-a n=1e30", "-a n=99999999999999999999", "-p =5", "-I nowhere",
        "-I ok.cu", "--arch sm_1", "--json folder", "--json ok.cu", "--json ok.txt", "--html ok.txt",
        "--sarif ok.txt", "--junit ok.txt", "--json /dev/full",
    )),
    ["build", "ok.cu", "-o", "ok.txt"], ["new", "x", "-o", "ok.txt"], ["new", "ok"], ["new", "../x"],
    ["new", ""], ["report", "list.json", "-o", "ok.txt"], ["judge", "ok.cu", "--problem", "no"],
    ["judge", "ok.cu", "--scores", "folder"], ["cache", "--to", "nan"], ["compare", ""],
    ["compare", "HEAD~99999"], ["worker", ""], ["selftest", "no"],
]  # fmt: skip


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("words", ATTACKS, ids=" ".join)
def test_malformed_input(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused in words, and no file is lost."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    for name, leads in {"loop.cu": "loop.cu", "dangling.cu": "nowhere.cu", "device.cu": "/dev/zero"}.items():
        (tmp_path / name).symlink_to(leads)
    for name in ("folder", "folder.cu"):
        (tmp_path / name).mkdir()
    result = harness(*words)  # raises what is no exit
    assert result.exit_code in (1, 2), result.output
    assert re.search(r"(?im)^error: .{8}|: rejected: ", result.output), result.output
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("change", ["latin-1", "bom", "crlf", "cr"])
def test_texts_of_other_systems_are_read(change: str, tmp_path: Path) -> None:
    """A comment in Latin-1, a mark of the byte order, and ends of lines of Windows are no fault."""
    texts = {
        "latin-1": "// größer\n".encode("latin-1") + PLAIN,
        "bom": b"\xef\xbb\xbf" + PLAIN,
        "crlf": PLAIN.replace(b"; ", b";\r\n").replace(b"}\n", b"}\r\n"),
        "cr": b"// One\r" + PLAIN,
    }
    (tmp_path / "k.cu").write_bytes(texts[change])
    result = harness("check", str(tmp_path / "k.cu"))
    assert result.exit_code == 0 and "k was launched as by" in result.output


def test_a_result_replaces_what_harness_has_written(tmp_path: Path) -> None:
    """A second run does that; an empty file, of mktemp, is nobody's."""
    (tmp_path / "k.cu").write_bytes(PLAIN)
    for name in ("r.json", "r.html", "r.xml"):
        (tmp_path / name).touch()
    words = ["check", str(tmp_path / "k.cu"), "--json", "r.json", "--html", "r.html", "--junit", "r.xml"]
    words = [str(tmp_path / word) if word.startswith("r.") else word for word in words]
    for _ in range(2):
        assert harness(*words).exit_code == 0
    assert (tmp_path / "r.json").read_bytes().startswith(b"{")
