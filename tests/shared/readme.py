"""The code that the README shows."""

from __future__ import annotations

import re

from shared.places import ROOT

README = ROOT / "README.md"


def python_blocks() -> list[str]:
    """Return the README's blocks of Python, in order."""
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
