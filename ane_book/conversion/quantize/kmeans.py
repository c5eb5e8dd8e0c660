"""k-means of numbers, many groups at once: the palettes of weights.

In one dimension a cell is a stretch of the sorted numbers, so a clustering is k - 1 cuts, and sums
over a cell are differences of running sums: a step of Lloyd's iteration costs k searches whatever
the group's size. Lloyd alone stops at the first local optimum, some per cent to a multiple above
the least error. So between its rounds each cell is divided into parts, and a dynamic program finds
the best k cells that are made of whole parts; the cells there were are among them, so the error
never grows. A test holds the result to the exact optimum (Wu 1991; Gronlund et al. 2017, arXiv
1701.07204), which takes minutes for a model where this takes seconds.

Letters: G groups, n numbers of a group, k cells. Cuts are (G, k + 1) positions from 0 to n.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

ROUNDS = 2  # of Lloyd and regrouping
STEPS = (5, 20)  # of Lloyd in a round, and at the end; most groups stand still before
AT_ONCE = 32  # groups; so many stay in the processor's cache
BAND = 48  # parts by which a cut may move in one regrouping
REACH = 3  # times its parts that a cell may grow to in one regrouping


def centres(rows: Tensor, k: int, weights: Tensor | None = None) -> Tensor:
    """The means (G, k), float64, ascending, of the cells of rows (G, n) that vary the least.

    weights: how much each number counts, (G, n); all of them alike if None. At most k distinct
    numbers in a row come back exactly, some of them repeated.
    """
    short = max(0, k - rows.shape[1])  # fewer numbers than cells: repeat the last
    ordered, order = rows.sort(dim=1)
    counts = torch.ones_like(rows) if weights is None else weights.gather(1, order)
    ordered, counts = (
        pad(values.double(), (0, short), mode="replicate").split(AT_ONCE)
        for values in (ordered, counts)
    )
    pairs = zip(ordered, counts, strict=True)
    return torch.cat([_Groups(numbers, weights).centres(k) for numbers, weights in pairs])


def middles(values: Tensor) -> Tensor:
    """The midpoints (G, k - 1) between neighbours of ascending values (G, k)."""
    return ((values[:, 1:] + values[:, :-1]) / 2).contiguous()


class _Groups:
    """Sorted groups (G, n) with their weights, and the running sums of both."""

    def __init__(self, ordered: Tensor, weights: Tensor):
        self.ordered = ordered
        self.mass, self.sums, self.squares = (
            pad(values.cumsum(dim=1), (1, 0))  # (G, n + 1)
            for values in (weights, weights * ordered, weights * ordered.square())
        )

    def centres(self, k: int) -> Tensor:
        cuts = self._first_cuts(k)
        for _ in range(ROUNDS):
            cuts, _ = self._lloyd(cuts, STEPS[0])
            cuts = self._regroup(cuts, parts=8 if k <= 64 else 4)
        return self._lloyd(cuts, STEPS[1])[1]

    def _first_cuts(self, k: int) -> Tensor:
        """Cells of equal mass of density^(1/3), optimal for many cells (Panter and Dite 1951).

        The density, weights counted, is that between quantiles eight numbers apart. A group of at
        most k distinct numbers is cut where they change.
        """
        groups, n = self.ordered.shape
        at = torch.arange(0, n, max(1, min(8, n // k)))
        density = self.mass[:, at].diff(dim=1) * self.ordered[:, at].diff(dim=1).square()
        mass = density.pow(1 / 3).cumsum(dim=1)
        targets = torch.arange(1, k).double() / k * mass[:, -1:]
        inner = at[torch.searchsorted(mass, targets).clamp(max=len(at) - 2) + 1]
        gaps = self.ordered.diff(dim=1)
        few = (gaps > 0).sum(dim=1) < k
        inner[few] = gaps[few].topk(k - 1).indices.sort(dim=1).values + 1
        ends = torch.tensor([0, n]).expand(groups, 2)
        return torch.cat([ends[:, :1], inner, ends[:, 1:]], dim=1)

    def _lloyd(self, cuts: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Cells' means, then every number to its nearest mean, and again: cuts and means."""
        last = self.ordered.shape[1] - 1
        means = self.ordered.gather(1, cuts[:, :-1].clamp(max=last))  # an empty cell stays there
        for _ in range(steps):
            counts = self.mass.gather(1, cuts).diff(dim=1)
            means = torch.where(counts > 0, self.sums.gather(1, cuts).diff(dim=1) / counts, means)
            moved = cuts.clone()
            moved[:, 1:-1] = torch.searchsorted(self.ordered, middles(means))
            if torch.equal(moved, cuts):
                break
            cuts = moved
        return cuts, means

    def _regroup(self, cuts: Tensor, parts: int) -> Tensor:
        """The best k cells made of these cells' equal parts, each cut near where it was.

        The least error of i cells up to an end is the minimum over the begin of the last one, at
        most `reach` parts before, of the least error of i - 1 cells up to there and its own. Ends
        of i cells are counted from i * parts - BAND, where their band begins.
        """
        k, reach, span = cuts.shape[1] - 1, REACH * parts, 2 * BAND + 1
        steps = torch.arange(parts) / parts
        inside = cuts[:, :-1, None] + (cuts.diff(dim=1)[:, :, None] * steps).long()
        ends = torch.cat([inside.flatten(1), cuts[:, -1:]], dim=1)  # (G, E), E = k * parts + 1
        errors = pad(self._errors(ends, reach), (BAND, BAND), value=torch.inf)
        band = slice(reach - parts, reach - parts + span)  # around it, no i cells end
        least = torch.full((k + 1, len(cuts), reach + span), torch.inf)
        least[0, :, band.start + BAND] = 0
        for i in range(1, k + 1):
            before = _before(least[i - 1], reach)  # (reach, G, span)
            own = errors[:, :, i * parts : i * parts + span]
            least[i, :, band] = (before + own).amin(dim=0)
        groups, begins = torch.arange(len(cuts)), torch.arange(reach)
        end = torch.full_like(cuts[:, :1], BAND)
        chosen = [end + k * parts]
        for i in range(k, 0, -1):
            own = errors[:, groups, i * parts + end[:, 0]].T  # (G, reach)
            best = (least[i - 1].gather(1, end + begins) + own).argmin(dim=1, keepdim=True)
            end = end + best - band.start
            chosen.append(end + (i - 1) * parts)
        return ends.gather(1, torch.cat(chosen[::-1], dim=1) - BAND)

    def _errors(self, ends: Tensor, reach: int) -> Tensor:
        """Squared error (reach, G, E) of one cell from each of the `reach` ends before to an end.

        Without an end there, that of a cell from the first number on.
        """
        count, total, square = (
            values - _before(pad(values, (reach, 0)), reach)
            for values in (
                self.mass.gather(1, ends),
                self.sums.gather(1, ends),
                self.squares.gather(1, ends),
            )
        )
        count = count.where(count > 0, 1)
        return (square - total.square() / count).clamp(min=0).float()


def _before(padded: Tensor, reach: int) -> Tensor:
    """Values (G, reach + E) -> (reach, G, E): the ones before each of the last E."""
    return padded.unfold(1, reach, 1)[:, :-1].permute(2, 0, 1)
