"""Parity of bundles whose experts are packages: the trunks between them, and each expert.

A trunk is run on the outputs of PyTorch's experts and on the values of the trunks before it. Its
output `x` is compared with PyTorch's, and in single precision so are the gates. In half precision a
token with close scores may choose another expert, so the share of tokens that choose PyTorch's is
only reported. Each expert is compared with PyTorch's on the first token, chosen by it or not.

Letters: C hidden size, E experts, L layers, T tokens of a call.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isnan

from ane_book.bundle import Bundle
from ane_book.bundle.parts import Part
from ane_book.evidence.parity.stage import ParityStage, judged, padded
from ane_book.runtime.backends import MILBackend
from ane_book.runtime.shards import load_part, load_steps
import numpy as np


@dataclass(frozen=True)
class Run:
    """Successive calls of one function: the values of each, and the tokens in a call.

    taught: the outputs of PyTorch's experts are used, not those of the bundle's.
    """

    function: str
    calls: list[dict[str, np.ndarray]]
    tokens: int
    taught: bool = True

    def result(self, name: str) -> np.ndarray:
        """The result `name` for the tokens of all calls, (rows, tokens)."""
        return np.hstack([values[name][0, :, 0, : self.tokens] for values in self.calls])

    def step(self, step) -> None:
        step.clear()
        for values in self.calls:
            step.run(self.function, values, self.tokens)

    def say(self, y: np.ndarray) -> None:
        """Set `y` (C, tokens), the sum of the experts' outputs, in every call's values."""
        for i, values in enumerate(self.calls):
            x, own = values["x"], y[:, i * self.tokens : (i + 1) * self.tokens]
            values["y"] = padded(own, x.shape[3]).astype(x.dtype)


def walk_experts(
    bundle: Bundle, golden: dict[str, np.ndarray], precision: str, runs: list[Run]
) -> Iterator[ParityStage]:
    """Run every package in order, except for the head; afterwards `runs` hold the last results."""
    experts: list[Part] = []
    for part in bundle.manifest.packages:
        if part.part == "experts":
            experts.append(part)
        elif part.part == "layers":
            if experts:
                yield _worst(bundle, golden, precision, experts)
                _speak(bundle, golden, precision, experts, runs)
            (step,) = load_steps(bundle, MILBackend(precision), [part])
            for run in runs:
                run.step(step)
            yield from (_trunk(part, run, precision, golden) for run in runs if run.taught)
            experts = []


def _speak(
    bundle: Bundle, golden: dict, precision: str, experts: list[Part], runs: list[Run]
) -> None:
    """Set the sum of the outputs of a layer's experts in every run."""
    (step,) = load_steps(bundle, MILBackend(precision), experts)
    for run in runs:
        run.say(golden["y"][experts[0].first_layer]) if run.taught else run.step(step)


def _trunk(part: Part, run: Run, precision: str, golden: dict) -> ParityStage:
    """Compare what a trunk passes to the next experts, or the model's output, with PyTorch's."""
    layer = part.first_layer
    judge = partial(judged, name=part.package, function=run.function, precision=precision)
    if "gates" not in part.functions[run.function].outputs:
        last = "logits" if "logits" in run.calls[0] else "hidden"
        expected = golden["hidden"][-1] if last == "hidden" else golden["logits"]
        found = run.result(last)
        return judge(found=found, expected=expected[:, : found.shape[1]])
    x, gates = run.result("x"), run.result("gates")
    n = x.shape[1]
    stage = judge(found=x, expected=golden["x"][layer][:, :n])
    expected = golden["gates"][layer][:, :n]
    same = float(((gates != 0) == (expected != 0)).all(axis=0).mean())
    if precision == "fp32":  # gates are at most 1, and all 0 for a token that takes no expert
        apart = float(np.abs(gates - expected).max())
        stage = replace(stage, error=max(_error(stage), inf if np.isnan(apart) else apart))
    return replace(stage, agreement=same, tokens=n)


def _worst(bundle: Bundle, golden: dict, precision: str, experts: list[Part]) -> ParityStage:
    """The expert of a layer with the largest error on the first token.

    Errors are relative to the largest output of all experts, since they are added up: the output of
    one for a token that did not choose it may be a small difference of large numbers.
    """
    backend, layer = MILBackend(precision), experts[0].first_layer
    name, T = next(iter(bundle.manifest.functions.items()))
    x = padded(golden["x"][layer][:, :1], T).astype(backend.dtype)
    gate = padded(np.ones((1, 1), np.float32), T).astype(backend.dtype)
    loudest = float(np.abs(golden["experts"][layer]).max())
    stages = []
    for part in experts:
        said = load_part(bundle, backend, part)[name].predict({"x": x, "gate": gate})["y"]
        expected = golden["experts"][layer, part.expert][:, None]
        found = said[0, :, 0, :1]
        stage = judged(part.package, name, precision, found=found, expected=expected)
        error = inf if stage.max_abs is None else stage.max_abs / loudest
        stages.append(replace(stage, error=error))
    return max(stages, key=_error)


def _error(stage: ParityStage) -> float:
    return inf if stage.error is None or isnan(stage.error) else stage.error
