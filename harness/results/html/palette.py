"""Give each kernel one colour and one marker on the whole of a page, in the order of the ladder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vP*X<>hpd8"
_LEADER = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)}
_GAP = 0.042  # least distance of two labels, as a share of the axes' height


class Palette:
    """Colours and markers of kernels by name: the rungs by their numbers, then all others as they come.

    Neighbours on the ladder have neighbouring colours, which differ in brightness too and are visible on
    light and dark pages.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = list(dict.fromkeys(names))
        known.sort(key=lambda name: (not name[:1].isdigit(), name if name[:1].isdigit() else ""))
        self.order = {name: place for place, name in enumerate(known)}

    def colour(self, name: str) -> Any:
        """Return the colour of a kernel of this page."""
        return colours(len(self.order))[self.order[name]]

    def marker(self, name: str) -> str:
        """Return the marker of a kernel of this page."""
        return _MARKERS[self.order[name] % len(_MARKERS)]

    def sorted(self, names: Iterable[str]) -> list[str]:
        """Return names in the order of the ladder."""
        return sorted(dict.fromkeys(names), key=self.order.__getitem__)


def colours(count: int) -> list[Any]:
    """Return colours that also differ in brightness, and are visible on light and dark pages."""
    import matplotlib

    map_ = matplotlib.colormaps["turbo"]
    return [map_(0.08 + 0.84 * i / max(1, count - 1)) for i in range(count)]


def label_ends(axes: Axes, ends: Sequence[tuple[str, float, float, Any]]) -> None:
    """Write each line's name at its end, moved up or down where names would cover each other.

    `ends` has the name, the last point and the colour of each line. The axes have their final limits.
    """
    if not ends:
        return
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = sorted((float(to_axes.transform((x, y))[1]), name, (x, y), c) for name, x, y, c in ends)
    heights = [e[0] for e in placed]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + _GAP)
    over = max(0.0, heights[-1] - 1.0)
    for i in reversed(range(len(heights))):  # what was pushed out at the top comes back down
        top = heights[i + 1] - _GAP if i + 1 < len(heights) else heights[i] - over
        heights[i] = min(heights[i], top)
    for height, (_, name, point, colour) in zip(heights, placed, strict=True):
        axes.annotate(
            name,
            point,
            (1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            arrowprops=_LEADER | {"color": colour},
            annotation_clip=False,
        )
