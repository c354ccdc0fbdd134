"""Architecture names such as ``sm_90a``: parsing, order, and what each one has."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import UsageError

_NAME = re.compile(r"sm_([0-9]{2,3})([af]?)\Z")
_FIRST = {"": 0, "a": 90, "f": 100}  # the first architecture that has code of its own, or of its family
DEFAULT = "sm_90a"  # where no GPU says otherwise: the architecture that the records come from


@dataclass(frozen=True)
class Arch:
    """`number` is 10 * major + minor; `suffix` "a" is architecture-specific code, "f" family-specific."""

    number: int
    suffix: str = ""

    @classmethod
    def parse(cls, name: str) -> Arch:
        match = _NAME.match(name)
        if not match:
            raise UsageError(f"{name!r} is not an architecture", hint="such as sm_75, sm_80, sm_90a, sm_120")
        number, suffix = int(match[1]), match[2]
        if number < _FIRST[suffix]:
            raise UsageError(
                f"{name!r} is not an architecture", hint=f"there is {suffix!r} from sm_{_FIRST[suffix]} on"
            )
        return cls(number, suffix)

    @classmethod
    def of_capability(cls, major: int, minor: int) -> Arch:
        """What to compile for on a GPU: with its own instructions (wgmma, TMA...) from Hopper on."""
        return cls(10 * major + minor, "a" if major >= 9 else "")

    def __str__(self) -> str:
        return f"sm_{self.number}{self.suffix}"

    def satisfies(self, least: Arch) -> bool:
        """Whether a kernel with ``min_arch`` `least` can be compiled for this one.

        Code for plain ``sm_80`` works on everything later; ``sm_90a`` only on 9.0 and ``sm_100f`` only
        within its family, compiled as such.
        """
        if not least.suffix:
            return self.number >= least.number
        if least.suffix == "f":
            same_family = self.number // 10 == least.number // 10
            return same_family and self.number >= least.number and bool(self.suffix)
        return self == least


def listed(names: object) -> list[str]:
    """One name or several, checked, each once. Raises UsageError."""
    several = [names] if isinstance(names, str) else names
    if not isinstance(several, list | tuple) or not several:
        raise UsageError(f"no architecture: {names!r}", hint="such as 'sm_75' or ['sm_75', 'sm_90a']")
    return list(dict.fromkeys(str(Arch.parse(str(name))) for name in several))
