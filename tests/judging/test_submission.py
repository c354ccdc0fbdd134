"""A submission reaches nothing outside its folder, whatever its text does to hide that."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from harness.errors import SpecError, UsageError
from harness.judging import submission
from harness.judging.submission import MOST_BYTES, MOST_FILES
from harness.kernels import spec

FRONT = '// /// kernel\n// entry = "matmul"\n// block = 1\n// tile = [1, 1]\n// ///\n'


def write(folder: Path, text: str, name: str = "k.cu") -> Path:
    path = folder / name
    path.write_text(FRONT + text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        '#include "../secret.h"',
        '#include "sub/../../secret.h"',
        '# include "/etc/passwd"',
        '#\tinclude "/etc/passwd"',
        '#/* */include/**/"/etc/passwd"',
        '#inc\\\nlude "/etc/passwd"',
        '#inc\\  \nlude "/etc/passwd"',
        '#inc??/\nlude "/etc/passwd"',
        '#inc\\\rlude "/etc/passwd"',
        '#inc\\\f\nlude "/etc/passwd"',
        '// a comment\r#include "/etc/passwd"',
        '%:include "/etc/passwd"',
        '??=include "/etc/passwd"',
        '#include_next "/etc/passwd"',
        '#define WHERE "/etc/passwd"\n#include WHERE',
        '/* R"x( */\n#include "/etc/passwd"\n/* )x" */',
        'const char* s = R"(\n#include "/etc/passwd"\n)";',
        '#import "/etc/passwd"',
        "#embed </dev/random>",
        '#if __has_include("/etc/passwd")\n#endif',
        "#if __has_embed(</etc/passwd>)\n#endif",
        'asm(".incbin \\"/etc/passwd\\"");',
        '#include "a\\..\\b.h"',
    ],
)
def test_what_reaches_outside_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path.parent / "secret.h").write_text("")
    with pytest.raises(SpecError) as caught:
        submission.read(write(tmp_path, text))
    assert "k.cu:" in caught.value.where


@pytest.mark.parametrize(
    "text",
    [
        "const char* s = __FILE__;",
        "const char* s = __FI\\\nLE__;",
        "#define P(a, b) a##b\nconst char* s = P(__FI, LE__);",
        "#define P(a, b) a%:%:b\nconst char* s = P(__FI, LE__);",
        "#define P(a, b, c) a##b##c\nconst char* s = P(_, _DAT, E__);",
        "const char* s = __builtin_FILE();",
        "const char* s = __BASE_FILE__;",
        "constexpr char hour = __TIME__[1];",
        "constexpr char year = __DATE__[10];",
        "#define __assert_fail(m, f, ...) seen(f)\n",
        "auto s = cuda::std::source_location::current().file_name();",
    ],
)
def test_what_knows_where_or_when_it_is_compiled_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match="where or when it is compiled"):
        submission.read(write(tmp_path, text))
    (tmp_path / "a.h").write_text(text)
    with pytest.raises(SpecError, match="where or when it is compiled"):
        submission.read(write(tmp_path, '#include "a.h"', "other.cu"))


@pytest.mark.parametrize(
    "text",
    [
        "#define P(a, b) a##b\nint P(file, name); int FILE; int at = __LINE__;",
        "#define P(a, b) a##b\nint P(__DA, TA__);",
        "// the file of today's date; assert(x > 0);\n#define F _FILE_\n",
    ],
)
def test_what_only_looks_like_it_is_taken(tmp_path: Path, text: str) -> None:
    assert submission.read(write(tmp_path, text)).files


@pytest.mark.parametrize(
    "text",
    ["#" + "/**/" * 5000 + "x", "#/*" * 100_000 + "*/", "//include=[\n" * 100_000, "#  " * 500_000,
     "\\ " * 500_000, '#include "' * 200_000],
    ids=["comments", "ends of comments", "folders", "blanks", "backslashes", "quotes"],
)  # fmt: skip
def test_no_text_takes_for_ever(tmp_path: Path, text: str) -> None:
    began = time.monotonic()
    with suppress(SpecError):
        submission.read(write(tmp_path, text))
    assert time.monotonic() - began < 10


def test_headers_beside_it_come_along(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.h").write_text('#include "c.h"\n')
    (tmp_path / "sub" / "c.h").write_text("#pragma once\n")
    (tmp_path / "unused.h").write_text("")
    found = submission.read(
        write(tmp_path, '#include "sub/b.h"\n#include <vector.cuh>\n#include <cstdint>\n')
    )
    assert set(found.files) == {"k.cu", "sub/b.h", "sub/c.h"}
    copy = found.copy(tmp_path / "private")
    assert copy.read_text().startswith(FRONT)
    assert (tmp_path / "private" / "sub" / "c.h").is_file()


def test_a_link_that_leaves_is_refused(tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.h"
    outside.write_text("")
    (tmp_path / "inside.h").symlink_to(outside)
    with pytest.raises(SpecError, match="leaves its folder"):
        submission.read(write(tmp_path, '#include "inside.h"'))
    (tmp_path / "linked.cu").symlink_to(outside)
    with pytest.raises(SpecError, match="leaves its folder"):
        submission.read(tmp_path / "linked.cu")


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("#pragma once\n")
    (tmp_path / "b.h").symlink_to(tmp_path / "a.h")
    assert submission.read(write(tmp_path, '#include "b.h"')).files["b.h"] == b"#pragma once\n"


def test_a_header_in_a_circle_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "a.h"\n#include "k.cu"\n')
    assert len(submission.read(write(tmp_path, '#include "a.h"')).files) == 2


def test_too_much_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.h").write_bytes(b" " * MOST_BYTES)
    with pytest.raises(SpecError, match="MiB"):
        submission.read(write(tmp_path, '#include "large.h"'))


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    for i in range(MOST_FILES):
        (tmp_path / f"{i}.h").write_text("")
    with pytest.raises(SpecError, match="files"):
        submission.read(write(tmp_path, "".join(f'#include "{i}.h"\n' for i in range(MOST_FILES))))


@pytest.mark.parametrize("name", ["k.py", "nothing.cu", "folder.cu"])
def test_what_is_no_kernel_file_is_the_callers_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.cu").mkdir()
    (tmp_path / "k.py").write_text("")
    with pytest.raises(UsageError):
        submission.read(tmp_path / name)


def test_the_hash_is_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("int a;")
    first = submission.read(write(tmp_path, '#include "a.h"'))
    (tmp_path / "a.h").write_text("int b;")
    assert submission.read(tmp_path / "k.cu").sha256 != first.sha256 == first.sha256


def with_keys(tmp_path: Path, keys: str, text: str = "") -> Path:
    path = tmp_path / "k.cu"
    front = "".join(f"// {line}\n" for line in keys.splitlines())
    path.write_text(
        f'// K\n//\n// /// kernel\n// entry = "k"\n// block = 1\n// tile = 1\n{front}// ///\n{text}'
    )
    return path


def test_folders_of_front_matter_come_along(tmp_path: Path) -> None:
    (tmp_path / "inc" / "deep").mkdir(parents=True)
    (tmp_path / "inc" / "a.h").write_text("#include <b.h>\n")
    (tmp_path / "inc" / "deep" / "b.h").write_text("#pragma once\n")
    path = with_keys(tmp_path, "include = [\n  \"inc\",\n  'inc/deep',\n]", '#include "a.h"\n')
    assert set(submission.read(path).files) == {"k.cu", "inc/a.h", "inc/deep/b.h"}
    submission.check(spec.load(path))


def test_a_header_in_a_linked_folder_is_refused(tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    outside.mkdir()
    (outside / "a.h").write_text("")
    (tmp_path / "inc").symlink_to(outside)
    with pytest.raises(SpecError, match="leaves its folder"):
        submission.read(with_keys(tmp_path, 'include = ["inc"]', '#include "a.h"\n'))


@pytest.mark.parametrize(
    "keys",
    [
        'include = ["/etc"]',
        'include = ["../.."]',
        'include = ["inc", "inc/../.."]',
        'include = ["a\\\\b"]',
        '"include" = ["/etc"]',
        '"include" = ["inc"]',
        'include = ["i\\u006ec"]',
        'options = ["-DX=_\\u005fFILE__"]',
        'options = ["-DX=\\u005f_DATE__"]',
        'options = ["--ptxas-options=-o=/tmp/x"]',
        'options = ["--split-compile=0"]',
        'options = ["-DX=1\\n#include </etc/passwd>"]',
        'options = ["-DX=a b"]',
        'options = ["--define-macro=F(x)=x"]',
        'options = ["--unknown"]',
    ],
)
def test_keys_that_might_do_harm_are_refused(tmp_path: Path, keys: str) -> None:
    with pytest.raises(SpecError, match="outside its folder|not for submissions|not seen"):
        submission.check(spec.load(with_keys(tmp_path, keys)))


def test_options_that_change_code_alone_are_taken(tmp_path: Path) -> None:
    safe = '"--use_fast_math", "-fmad=false", "--std=c++20", "-maxrregcount=64", "-DTILE=16", "-Xptxas=-O2"'
    submission.check(spec.load(with_keys(tmp_path, f"options = [{safe}]")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#if __CUDA_ARCH__ >= 900\nint x;\n#endif", "__CUDA_ARCH__, k.cu:6"),
        ("#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n#endif", "__CUDA_ARCH_FEAT_SM90_ALL, k.cu:6"),
        ("int x;\n#ifdef __CUDACC_RTC__\n#endif", "__CUDACC_RTC__, k.cu:7"),
        ("NV_IF_TARGET(NV_PROVIDES_SM_90, (int x;))", "NV_IF_TARGET, k.cu:6"),
        ("#define JOIN(a, b) a##b\n#if JOIN(__CUDA_, ARCH__) > 900\n#endif", "## may paste __CUDA_ARCH__"),
        ("#define JOIN(a, b) a##b\nint JOIN(x, y);", ""),
        ("int __CUDA_ARCH = 3;", ""),
    ],
)
def test_what_tells_the_architecture_is_noticed(tmp_path: Path, text: str, said: str) -> None:
    assert submission.read(write(tmp_path, text)).targets == said
    header = write(tmp_path, '#include "other.h"')
    (tmp_path / "other.h").write_text(text)
    assert bool(submission.read(header).targets) == bool(said)
