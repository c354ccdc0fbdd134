"""docs/files.md names the licence of every package that harness installs, as the package itself does."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest

from shared.places import ROOT

LINE = re.compile(r"^\| (?!package )([a-z][\w-]+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
TABLE = dict(LINE.findall((ROOT / "docs" / "files.md").read_text().partition("## Licences")[2]))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = {"test", "docs", "dev", "fit", "mutation"}  # extras that a user does not install


def names(requirements: list[str]) -> set[str]:
    found = {re.split(r"[^\w-]", text)[0] for text in requirements}
    return found - {PROJECT["name"]}


def test_every_package_is_listed() -> None:
    extras = [
        names(listed) for extra, listed in PROJECT["optional-dependencies"].items() if extra not in TOOLS
    ]
    assert TABLE.keys() == names(PROJECT["dependencies"]).union(*extras)


@pytest.mark.parametrize("name", TABLE)
def test_the_licence_is_the_packages_own(name: str) -> None:
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    told = " ".join(
        [about.get("License-Expression", ""), about.get("License", ""), *about.get_all("Classifier", [])]
    ).lower()
    first = TABLE[name].split()[0].lower().rstrip(",")
    known = {"nvidia": "proprietary", "psf-based": "python software foundation", "bsd-3-clause": "bsd"}
    assert known.get(first, first) in told
