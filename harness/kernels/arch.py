"""Architecture names such as ``sm_90a``: parse them, and tell which code runs where."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import UsageError

_NAME = re.compile(r"sm_([0-9]{2,3})([af]?)\Z")
_FIRST = {"": 0, "a": 90, "f": 100}  # the first architecture that knows each suffix
DEFAULT = "sm_90a"  # taken where there is no GPU; the records come from this architecture
SMS = 4  # multiprocessors of the GPU that is emulated, by default


@dataclass(frozen=True)
class Arch:
    """A GPU architecture to compile for.

    `number` is 10 * major + minor of the compute capability. With `suffix` "a" code runs on exactly this
    architecture, with "f" on its family, and with none on every later one too.
    """

    number: int
    suffix: str = ""

    @classmethod
    def parse(cls, name: str) -> Arch:
        """Read a name such as ``sm_90a``. Raises UsageError for anything else."""
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
        """Return what to compile for on a GPU of this compute capability.

        From Hopper on (9.0) that is the architecture with its own instructions, such as wgmma.
        """
        return cls(10 * major + minor, "a" if major >= 9 else "")

    def __str__(self) -> str:
        return f"sm_{self.number}{self.suffix}"

    def satisfies(self, least: Arch) -> bool:
        """Return True where a kernel whose ``min_arch`` is `least` can be compiled for this architecture.

        Code for ``sm_80`` compiles for every later architecture, code for ``sm_90a`` for ``sm_90a`` only,
        and code for ``sm_100f`` for the architectures of its family that have a suffix.
        """
        if not least.suffix:
            return self.number >= least.number
        if least.suffix == "f":
            same_family = self.number // 10 == least.number // 10
            return same_family and self.number >= least.number and bool(self.suffix)
        return self == least


def listed(names: object) -> list[str]:
    """Return one name or several as a list of checked names, each once. Raises UsageError."""
    several = [names] if isinstance(names, str) else names
    if not isinstance(several, list | tuple) or not several:
        raise UsageError(f"no architecture: {names!r}", hint="such as 'sm_75' or ['sm_75', 'sm_90a']")
    return list(dict.fromkeys(str(Arch.parse(str(name))) for name in several))
