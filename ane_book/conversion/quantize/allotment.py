"""Calibrated encoding: choose a scheme for every matrix within a budget, and quantise by it.

`quant="auto:5"` is a budget of five bits a weight for all matrices together. First the model runs
on a text (`calibrate`). Then some rows of each matrix are quantised by each scheme that may be
taken, with error feedback, to estimate the loss; `allot` spends the budget; and each matrix is
quantised by its scheme when it is written.

All matrices start with the fewest bytes. Then, while the budget lasts, the step to a larger scheme
that removes the most loss per byte is taken: greedy over the lower convex hull of each matrix's
choices, which is optimal but for the bytes that are left over at the end.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
import json
from pathlib import Path

from ane_book.conversion.encoding import Encoding
from ane_book.conversion.plan import Plan
from ane_book.conversion.plan.programs import blob_bytes
from ane_book.conversion.quantize.calibrate import HEAD, TOKENS, Calibration, calibration_text
from ane_book.conversion.quantize.feedback import Moments, encode
from ane_book.conversion.quantize.schemes import AUTO, find_scheme
from ane_book.errors import InvalidInput
from ane_book.models.base import decoder
from ane_book.text.process import TextProcess
from ane_book.weights import WeightSource
import torch
from torch import Tensor

STRETCH, EVERY = 32, 8  # rows of a stretch; one stretch of so many is quantised to estimate a loss


@dataclass(frozen=True)
class Choice:
    """A scheme for a matrix: its name, its bytes, and the loss that it is expected to cost."""

    scheme: str
    bytes: int
    loss: float


class Allotment(Encoding):
    """Encodes each matrix by a scheme of its own, chosen within a budget by calibration.

    `file` has the scheme of every matrix; it stays in the bundle. The calibration's results stay in
    the unfinished bundle until its last program is written.
    """

    file = "schemes.json"

    def __init__(self, source: WeightSource, plan: Plan):
        super().__init__(source, plan)
        recipe = plan.recipe
        self._schemes = find_scheme(recipe.quant), find_scheme(recipe.quant_head)
        self.steps = 3 * self.config.num_layers + 2

    def prepare(self, path: Path, report: Callable[[str], None]) -> None:
        """Calibrate, and write `file`. Raises InvalidInput where the text is too short."""
        text = TextProcess()
        text.load(self.folder / "tokenizer.json")
        token_ids = text.encode(calibration_text(), special=False)[:TOKENS]
        for step in self._calibration(token_ids).run():
            report(step)
        choices, shares = {}, {}
        for name, weight, scheme, moments in self._matrices(report):
            if scheme.form == "auto":
                choices[name] = _choices(weight, moments)
                shares[name] = scheme.budget * weight.numel() / 8
        table = _spend(choices, shares)
        for names in self._programs(choices):
            if sum(table[name].bytes for name in names) > sum(shares[name] for name in names):
                table |= _spend({name: choices[name] for name in names}, shares)
        path.write_text(json.dumps({n: asdict(c) for n, c in table.items()}, indent=2) + "\n")

    def _programs(self, names: Iterable[str]) -> Iterator[list[str]]:
        """The matrices of each program, if one that is larger than planned may pass the limit."""
        names = set(names)
        for program in self.plan.programs if self.plan.is_tight else ():
            prefixes = {f"layers.{layer}" for layer in program.layers}
            prefixes |= {f"head.{part}" for part in program.parts}
            yield [name for name in sorted(names) if ".".join(name.split(".")[:2]) in prefixes]

    def _calibration(self, token_ids: Sequence[int] = ()) -> Calibration:
        return Calibration(self.config, self.folder, self.read, token_ids)

    def _matrices(self, report: Callable[[str], None]):
        """Yield every matrix: its name, weight (O, C, 1, 1), scheme in the recipe, moments."""
        calibration, (layers, head) = self._calibration(), self._schemes
        for layer in range(self.config.num_layers):
            state = decoder.block_weights(self.config, layer, self.read)
            for name, moments in calibration.of(layer).items():
                yield f"layers.{layer}.{name}", state[name], layers, moments
            report(f"schemes of layer {layer + 1} of {self.config.num_layers}")
        (moments,) = calibration.of(HEAD).values()
        weights = decoder.head_weights(self.config, self.plan.splits, self.read)
        for i, rows in enumerate(self._rows):
            yield f"head.{i}", weights[f"parts.{i}.weight"], head, moments.of_rows(rows)
        report("schemes of the head")

    @property
    def _rows(self) -> tuple[Tensor, ...]:
        """The rows of the vocabulary in each part of the head."""
        return torch.arange(self.config.vocab_size).split(self.plan.splits)

    def layer(self, layer: int, state: dict) -> dict:
        """The state dict of a layer, with each matrix that has a scheme quantised by it."""
        table = self._table()
        stored = {
            name: encode(state[name], AUTO[table[key]], moments)[0]
            for name, moments in self._calibration().of(layer).items()
            if (key := f"layers.{layer}.{name}") in table
        }
        return state | stored

    def head(self, number: int, weights: dict) -> dict:
        name = self._table().get(f"head.{number}")
        if name is None:
            return weights
        (moments,) = self._calibration().of(HEAD).values()
        own = moments.of_rows(self._rows[number])
        encoded, _ = encode(weights["parts.0.weight"], AUTO[name], own)
        return weights | {"parts.0.weight": encoded}

    def _table(self) -> dict[str, str]:
        table = json.loads((self.folder / self.file).read_text())
        return {name: choice["scheme"] for name, choice in table.items()}

    def finish(self) -> None:
        self._calibration().remove()


def _spend(choices: dict[str, list[Choice]], shares: dict[str, float]) -> dict[str, Choice]:
    """Make a choice for each matrix; their shares, in bytes, are one budget together."""
    budget = sum(shares[name] for name in choices)
    chosen = allot(list(choices.values()), int(budget))
    if chosen is None:
        raise InvalidInput(
            f"{budget:,.0f} bytes are too few for these matrices, which are small: palettes and "
            "scales take their part; raise the bits"
        )
    return dict(zip(choices, chosen, strict=True))


def _choices(weight: Tensor, moments: Moments) -> list[Choice]:
    """Bytes and loss of each scheme that may be taken; the loss is estimated on some rows."""
    outputs, choices = len(weight), []
    rows = torch.arange(outputs)
    if outputs >= STRETCH * EVERY and outputs % STRETCH == 0:
        rows = rows.view(-1, STRETCH)[::EVERY].flatten()
    share = float(moments.outputs[rows].sum() / moments.outputs.sum().clamp(min=1e-30))
    for name, candidate in AUTO.items():
        _, loss = encode(weight[rows], candidate, moments.of_rows(rows))
        size = sum(blob_bytes(weight.shape, candidate))
        choices.append(Choice(name, size, loss / max(share, 1e-30)))
    return choices


def allot(matrices: Sequence[Sequence[Choice]], budget: int) -> list[Choice] | None:
    """Make a choice for each matrix, at most `budget` bytes in all; None where nothing fits."""
    hulls = [_hull(choices) for choices in matrices]
    taken = [0] * len(hulls)
    left = budget - sum(hull[0].bytes for hull in hulls)
    if left < 0:
        return None
    steps = sorted(
        (_gain(*pair), i, step)
        for i, hull in enumerate(hulls)
        for step, pair in enumerate(pairwise(hull), 1)
    )
    for _, i, step in reversed(steps):
        more = hulls[i][step].bytes - hulls[i][taken[i]].bytes
        if step > taken[i] and more <= left:
            taken[i], left = step, left - more
    return [hull[step] for hull, step in zip(hulls, taken, strict=True)]


def _gain(small: Choice, large: Choice) -> float:
    """Loss removed per byte added."""
    return (small.loss - large.loss) / (large.bytes - small.bytes)


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """The lower convex hull: each step removes more loss per byte than the steps after it."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.bytes, choice.loss)):
        if hull and choice.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _gain(hull[-1], choice) >= _gain(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return hull
