"""Machine code that we did not build: libraries, several functions and architectures, damage."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BuildError, HarnessError, InspectError, UsageError
from harness.sass import binary
from harness.support import tools
from harness.support.cache import Cache
from shared import sweeps
from shared.binaries import fatbin
from shared.inspected import ARCHS, Read, build, harness, read  # noqa: F401  (fixture)
from shared.kernels import BODY


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_a_cubin_of_ours_read_as_a_foreign_one(arch: str, cache: Cache, read: Read, tmp_path: Path) -> None:
    file = tmp_path / "k.cubin"
    file.write_bytes(build("tiled", arch, cache).code)
    ours, (theirs,) = read("tiled", arch), binary.read(file, cache, threads=256)
    for name in ("arch", "registers", "shared", "stack", "occupancy", "sass", "file"):
        wanted = getattr(ours, name)
        if name == "sass":
            assert theirs.sass == wanted
        else:
            assert getattr(theirs, name) == wanted, name
    assert theirs.spills is None and ours.spills == 0
    assert theirs.line(41) == ours.line(41) != ""


def test_a_library_is_listed_and_shown_for_one_architecture(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.fatbin"
    file.write_bytes(
        fatbin((75, build("tiled", "sm_75", cache).code), (90, build("copy", "sm_90", cache).code))
    )
    tiled, copied = binary.listed(file)
    assert (tiled.name, tiled.arch, tiled.shared) == ("matmul", "sm_75", 2048)
    assert (copied.name, copied.arch, copied.shared) == ("copy", "sm_90", 0), (
        "the system's share is not its own"
    )
    assert tiled.registers == build("tiled", "sm_75", cache).resources.registers
    listed = harness(str(file), "--list")
    assert [line.split()[:2] for line in listed.output.splitlines()[2:]] == [
        ["matmul", "sm_75"],
        ["copy", "sm_90"],
    ]
    assert "copy" not in harness(str(file), "--list", "--arch", "sm_75").output
    shown = harness(str(file))
    assert "copy, sm_90" in shown.output and "matmul, sm_75" not in shown.output
    assert "k.fatbin: code for sm_90; --arch shows sm_75" in shown.stderr
    assert "matmul, sm_75" in harness(str(file), "--arch", "sm_75").output
    for args in (
        ["tiled", "--list"],
        [str(file), "--list", "-f", "nope"],
        [str(tmp_path / "no.so"), "--list"],
    ):
        refused = harness(*args)
        assert refused.exit_code != 0 and "Traceback" not in refused.output, args


@pytest.mark.parametrize("missing", [(), ("cxxfilt",)])
def test_names_are_demangled_by_whatever_is_there(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    if "cxxfilt" in missing and tools.find("c++filt") is None:
        pytest.skip("c++filt is not installed")
    if not missing:
        pytest.importorskip("cxxfilt")
    names = ["_Z3fooIfLi16EEvPT_", "matmul", "_Zbad"]
    assert binary.demangled(names) == {
        names[0]: "void foo<float, 16>(float*)",
        "matmul": "matmul",
        "_Zbad": "_Zbad",
    }
    monkeypatch.setitem(sys.modules, "cxxfilt", None)
    monkeypatch.setattr(tools, "find", lambda name: None)
    assert binary.demangled(names) == {name: name for name in names}, "without either they stay as they are"


def test_several_functions_and_architectures(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.fatbin"
    file.write_bytes(
        fatbin((75, build("tiled", "sm_75", cache).code), (90, build("copy", "sm_90", cache).code))
    )
    found = binary.read(file, cache)
    assert [(c.arch, c.sass.function) for c in found] == [("sm_75", "matmul"), ("sm_90", "copy")]
    (one,) = binary.read(file, cache, archs=("sm_90",))
    assert one.sass.function == "copy" and one.occupancy is None
    with pytest.raises(UsageError, match=r"no code for sm_80\n  -> it has sm_75, sm_90"):
        binary.read(file, cache, archs=("sm_80",))
    with pytest.raises(UsageError, match=r"no function 'x'\n  -> functions: matmul, copy"):
        binary.read(file, cache, function="x")
    (one,) = binary.read(file, cache, function="*op*")
    assert one.sass.function == "copy"
    compared = harness("tiled", "--arch", "sm_75", "--diff", str(file))
    assert compared.exit_code == 0 and "identical code" in compared.output, "the one for that architecture"
    result = harness(str(file), "-f", "matmul", "--diff", "sm_90")
    assert result.exit_code == 2 and "no function 'matmul'" in result.output


@pytest.mark.slow
def test_identical_code_is_noise_only_where_all_else_is_equal(
    cache: Cache, tmp_path: Path, kernel_file: Any
) -> None:
    """Another number of threads, or another function called, makes another speed of the same code."""
    one = kernel_file("k.cu", body=BODY.replace("TILE", "16"))
    other = kernel_file("other.cu", body=BODY.replace("TILE", "16"))
    other.write_text(other.read_text().replace('block = ["TILE", "TILE"]', 'block = ["TILE", "8"]'))
    same = harness(str(one), "--diff", "TILE=16")
    assert "would be noise" in same.output
    result = harness(str(one), "--diff", str(other))
    assert "identical code" in result.output and "noise" not in result.output
    assert "threads a block" in result.output and "128" in result.output
    texts = [DEVICE_FUNCTION, DEVICE_FUNCTION.replace("mul.f32 %f2, %f1, %f1;", "add.f32 %f2, %f1, %f1;")]
    files = [tmp_path / "a.ptx", tmp_path / "b.ptx"]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    called = harness(str(files[0]), "-f", "k", "--diff", str(files[1]))
    assert "identical code" in called.output and "noise" not in called.output, called.output


def test_dynamic_shared_memory_of_foreign_code_is_what_one_says(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.cubin"
    file.write_bytes(build("tiled", "sm_90", cache).code)
    assert "2048 B static shared" in harness(str(file)).output
    result = harness(str(file), "--threads", "256", "--shared", "100000")
    assert "102048 B shared" in result.output and "occupancy 25%: 2 blocks" in result.output


def test_a_bare_word_is_a_kernel_whatever_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiled").write_text("hi")
    assert harness("tiled").exit_code == 0
    assert "no device code in it" in harness("./tiled").output
    assert harness("a" * 300).exit_code == 2


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to make a library")
def test_a_library_with_embedded_cubins(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "x.fatbin").write_bytes(fatbin((80, build("tiled", "sm_80", cache).code)))
    (tmp_path / "m.s").write_text(
        '.section .nv_fatbin,"a"\n.align 8\nfb: .incbin "x.fatbin"\n'
        '.section .nvFatBinSegment,"aw"\n.align 8\n'
        '.long 0x466243b1\n.long 1\n.quad fb\n.quad 0\n.section .note.GNU-stack,"",@progbits\n'
    )
    subprocess.run(["gcc", "-shared", "-o", "libx.so", "m.s"], cwd=tmp_path, check=True)
    (code,) = binary.read(tmp_path / "libx.so", cache)
    assert code.arch == "sm_80" and code.sass.count("LDS.128") == 4
    result = harness(str(tmp_path / "libx.so"), "-e", "LDS.128 in loop", "-e", "spills == 0")
    assert result.exit_code == 1
    assert "holds   LDS.128 in loop: 4" in result.output
    assert "FAILED  spills == 0: a cubin does not say" in result.output


@pytest.mark.slow
def test_ptx_without_metadata(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(build("tiled", "sm_75", cache).ptx)
    (code,) = binary.read(file, cache)
    assert code.arch == "sm_75" and code.sass.count("FFMA") == 17
    assert [c.arch for c in binary.read(file, cache, archs=("sm_80", "sm_90"))] == ["sm_80", "sm_90"]
    file.write_text(file.read_text().replace("fma.rn.f32", "fma.rn.f33"))
    with pytest.raises(BuildError, match=r"k.ptx does not assemble for sm_75"):
        binary.read(file, cache)
    file.write_text("hello")
    with pytest.raises(UsageError, match=r"no \.target line: not PTX"):
        binary.read(file, cache)
    file.write_text(".version 7.0\n.target sm_52\n.address_size 64\n")
    with pytest.raises(UsageError, match=r"(?s)k\.ptx: nvJitLink .* does not assemble for sm_52 .*--arch"):
        binary.read(file, cache)


DEVICE_FUNCTION = """\
.version 7.0
.target sm_80
.address_size 64
.func (.param .f32 r) f(.param .f32 a)
{
    .reg .f32 %f<3>;
    ld.param.f32 %f1, [a];
    mul.f32 %f2, %f1, %f1;
    st.param.f32 [r], %f2;
    ret;
}
.visible .entry k(.param .u64 p)
{
    .reg .u64 %p;
    .reg .f32 %f<3>;
    ld.param.u64 %p, [p];
    ld.global.f32 %f1, [%p];
    {
        .param .f32 x;
        .param .f32 y;
        st.param.f32 [x], %f1;
        call (y), f, (x);
        ld.param.f32 %f2, [y];
    }
    st.global.f32 [%p], %f2;
    ret;
}
"""


def test_a_device_function_has_no_resources(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(DEVICE_FUNCTION)
    by_name = {c.sass.function: c for c in binary.read(file, cache, threads=32)}
    assert by_name["f"].registers is None and by_name["f"].occupancy is None
    assert by_name["k"].registers and by_name["k"].occupancy
    result = harness(str(file), "-f", "f", "-e", "registers <= 10")
    assert result.exit_code == 1 and "a device function" in result.output


@pytest.mark.parametrize(
    ("name", "content", "error", "text"),
    [
        ("a.cubin", b"hello\n", InspectError, "not a cubin: no CUDA ELF header"),
        ("a.cubin", b"", InspectError, "not a cubin"),
        ("a.so", b"\x7fELF\x02\x01\x01" + bytes(57), UsageError, "no device code in it"),
        ("a.txt", b"hello\n", UsageError, "no device code in it"),
        ("a.cubin", None, UsageError, "no such file"),
    ],
)
def test_files_without_code(
    tmp_path: Path, cache: Cache, name: str, content: bytes | None, error: type[HarnessError], text: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(error, match=text) as e:
        binary.read(file, cache)
    assert str(file) in str(e.value)
    result = harness(str(file))
    assert result.exit_code == e.value.exit_code and text in " ".join(result.output.split())


def test_a_truncated_cubin(tmp_path: Path, cache: Cache) -> None:
    whole = build("tiled", "sm_80", cache).code
    file = tmp_path / "k.cubin"
    for size in (64, 1000, len(whole) // 2, len(whole) - 100):
        file.write_bytes(whole[:size])
        with pytest.raises(InspectError, match=r"k\.cubin: nvdisasm refuses the cubin: .*\w"):
            binary.read(file, cache)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["{cubin}", "tiled"], "goes without other kernels"),
        (["{cubin}", "-p", "TILE=8"], "has no parameters"),
        (["tiled", "--threads", "32"], "for code that harness did not build"),
        (["tiled", "-f", "matmul"], "for code that harness did not build"),
        (["tiled", "-f", "matmul", "--diff", "TILE=8"], "for code that harness did not build"),
        (["tiled", "--diff", "TILE=8", "-e", "no LDL"], "no --expect, --source, --listing or --html with it"),
        (["{cubin}", "--diff", "sm_90"], "no code for sm_90"),
        (["{cubin}", "--arch", "sm_90"], "no code for sm_90"),
    ],
)
def test_options_that_do_not_go_together(args: list[str], text: str, tmp_path: Path, cache: Cache) -> None:
    file = tmp_path / "k.cubin"
    file.write_bytes(build("tiled", "sm_80", cache).code)
    result = harness(*(a.format(cubin=file) for a in args))
    assert result.exit_code == 2 and text in " ".join(result.output.split()), result.output
