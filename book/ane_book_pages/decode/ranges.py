"""Published figures beside the ranges that the cost model predicts: inside or outside, by model.

A model whose figures ended up in the fit or in an end of a range is marked, and is no evidence: its
figures would be inside by construction. Only figures that had no part in either count, and for a
reader's model only those of language models. None is left out because it is outside.

Taught in the chapter "How fast will it be?".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ane_book_pages.decode.fitting import asked, by_model, bytes_ms, within
from ane_book_pages.decode.published import Figure, Role
from mlprogram.ane.cost.model import Interval, predict

#: Single operations, and decoders of a few layers made for a test: what is no language model.
TEST_GRAPHS = frozenset({"convolutions", "products", "decoder-4-layers", "decoder-8-layers"})


@dataclass(frozen=True)
class Beside:
    """A model's figures of one role, and how many of them the predicted ranges hold."""

    model: str
    role: Role
    figures: tuple[Figure, ...]
    inside: int

    @property
    def held(self) -> str:
        """Whether the ranges hold "all", "some" or "none" of the figures."""
        if self.inside == len(self.figures):
            return "all"
        return "some" if self.inside else "none"

    @property
    def missed(self) -> str:
        """On which side the figures outside lie: "slower", "faster", "both" or ""."""
        sides = {_side(figure) for figure in self.figures} - {""}
        return "both" if len(sides) > 1 else "".join(sides)


def _range(figure: Figure) -> Interval:
    return predict(*asked(figure)).ms


def _side(figure: Figure) -> str:
    ms = _range(figure)
    return "" if figure.ms in ms else "slower" if figure.ms > ms.high else "faster"


def predictable(figure: Figure) -> bool:
    """Whether there is a range to put beside it: its work and a rate of its chip are published."""
    return bool(figure.work and figure.chip and not figure.cannot_be)


def beside(figures: Iterable[Figure], role: Role) -> list[Beside]:
    """The figures of a role by model; those of the fit are the ones that it was fitted to.

    A new figure of a graph and chip of which another figure is an end of a range comes from the
    same runs, so it is counted with the ranges.
    """
    known = [f for f in figures if predictable(f)]
    runs = {(f.name, f.chip) for f in known if f.role == "range"}
    roles = [(f, "range" if (f.name, f.chip) in runs else f.role) for f in known]
    chosen = [f for f, counted in roles if counted == role and not (role == "fit" and f.left_out)]
    return [
        Beside(name, role, tuple(own), sum(within(own))) for name, own in by_model(chosen).items()
    ]


def width(figures: Iterable[Figure]) -> float:
    """The median of the high end over the low end of the predicted ranges."""
    return median(ms.high / ms.low for ms in map(_range, figures))


def by_bytes(figures: Sequence[Figure]) -> list[bool]:
    """For each figure, whether a range that knows bytes alone holds it.

    From the time of the bytes to as many times that as the predicted range is wide, so that
    neither rule gains by being wider.
    """
    held = []
    for figure in figures:
        ms, least = _range(figure), bytes_ms(figure)
        held.append(least <= figure.ms <= least * ms.high / ms.low)
    return held
