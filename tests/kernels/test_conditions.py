"""Branches of #if that no build takes."""

from __future__ import annotations

import pytest

from harness.kernels.cpp.conditions import taken


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("#ifdef A/1/#else/2/#endif/3", "23"),
        ("#ifndef A/1/#else/2/#endif/3", "13"),
        ("#ifdef B/1/#else/2/#endif/3", "123"),  # whether B is defined there, and not later, is not known
        ("#ifdef GIVEN/1/#else/2/#endif", "12"),
        ("#ifdef __CUDA_ARCH__/1/#else/2/#endif", "12"),
        ("#if 0/1/#else/2/#endif", "2"),
        ("#if 1/1/#else/2/#endif", "1"),
        ("#if !defined(A)/1/#elif 1/2/#else/3/#endif", "1"),
        ("#if defined A/1/#elif X > 2/2/#else/3/#endif", "23"),
        ("#if X > 2/1/#elif defined(A)/2/#elif 1/3/#else/4/#endif", "13"),
        ("#if 0/1/#elif 0/2/#elif defined(A)/3/#else/4/#endif", "4"),
        ("#if 0/1/#ifndef A/2/#endif/3/#endif/4", "4"),
        ("#ifndef A/#if 0/1/#else/2/#endif/#endif/3", "23"),
        ("#  ifdef A // why/1/#  else // why not/2/#  endif", "12"),
        ("#endif/1/#else/2/#elif 1/3", "123"),
        ("#ifdef/1/#endif/#if/2/#endif", "12"),
    ],
)
def test_what_stays(text: str, left: str) -> None:
    source = text.replace("/", "\n").replace("\n\n", "//") + "\n"
    (found,) = taken([source + "#define B"], {"GIVEN"})
    assert "".join(line for line in found.splitlines() if line.isdigit()) == left
    assert found.count("\n") == source.count("\n"), "lines keep their numbers"


def test_what_another_text_defines_is_defined() -> None:
    assert taken(["#ifdef A\n1\n#endif\n", "#define A\n"])[0].count("1") == 1
    assert taken(["#ifdef A\n1\n#endif\n", "#define AB\n"])[0].count("1") == 0
