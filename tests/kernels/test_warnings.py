"""Warnings name the user's own files; those of libraries' headers are counted in a line."""

from __future__ import annotations

from pathlib import Path

from harness.kernels.cpp.source import errors

LIBRARY = Path("/packages/cccl")
OWN = '/home/k.cu(4): warning #177-D: variable "x" was declared but never referenced\n  int x;\n      ^\n'
NOTE = "/packages/cccl/plus.h(57): note #3287-D: because of an attribute\n  using plus = 1;\n        ^\n"
OTHER = '/packages/cccl/old.h(9): warning #1444-D: type "old" was declared deprecated\n  old x;\n  ^\n'
ASKED = OTHER + (
    "          detected during:\n"
    '            instantiation of "f<T>" at line 12\n'
    '            instantiation of "g<T>" at line 3 of "/home/k.cu"\n'
)


def told(*blocks: str) -> str:
    return errors.of_own("\n".join(blocks), [LIBRARY])


def test_own_warnings_are_shown_in_full() -> None:
    assert told(OWN) == OWN.rstrip()
    assert told(OWN + NOTE) == (OWN + NOTE).rstrip(), "with what they say of a library"
    assert told("Host code is left out: main", OWN).startswith("Host code is left out: main\n/home/k.cu(4)")


def test_those_of_libraries_are_counted() -> None:
    assert told(OTHER) == "1 warning in headers of libraries not shown"
    assert told(OWN, *[OTHER + NOTE] * 40) == OWN + "40 warnings in headers of libraries not shown"
    assert told() == "" and told("ptxas info    : 0 bytes gmem\n") == ""


def test_one_that_an_own_file_asks_for_is_its_own() -> None:
    assert told(ASKED) == ASKED.rstrip()
    inner = ASKED.replace("/home/k.cu", "/packages/cccl/g.h")
    assert told(inner) == "1 warning in headers of libraries not shown"
    beside = OTHER.replace("/packages/cccl/", "/packages/cccl2/")
    assert told(beside) == beside.rstrip(), "a folder whose name begins alike"
