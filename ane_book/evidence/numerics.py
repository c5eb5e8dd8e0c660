"""Numerics: what the published faults of the engine's arithmetic would change in a bundle.

    found = check_numerics(bundle)
    print(found)      # a row for each fault alone, and one for all of them
    found.passed      # no fault takes the results as far from fp16 as parity (L1) forbids

The bundle's golden tokens are read once in half precision, op by op, and once with each fault of
`mlprogram.run.precision`. Each token is read after those before it, whatever was predicted. The
faults are models of what others measured, each a claim of the registry; nobody has run this bundle
on an engine.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

from ane_book.bundle import Bundle
from ane_book.bundle.parts import Part
from ane_book.errors import InvalidBundle, InvalidInput
from ane_book.evidence.parity import LEAST
from ane_book.evidence.parity.locate import golden_inputs
from ane_book.runtime import Embedder, Session
from ane_book.runtime.backends import LoadedFunction, MILBackend
from ane_book.runtime.tags import Tagger
from mlprogram import MLProgram
from mlprogram.ane import claims
from mlprogram.compare import diff, percent
from mlprogram.run.precision import FAULTS
from mlprogram.tables import table
import numpy as np

__all__ = ["CLAIMS", "FaultEffect", "Numerics", "check_numerics"]

#: The claim that each fault is a model of.
CLAIMS = {
    "accumulator": "sum-most",
    "products": "products-small",
    "rounding": "rounding-away",
    "subnormals": "subnormals-lost",
    "nonfinite": "non-finite",
    "silu": "silu-small",
    "gelu": "gelu-lines",
    "softplus": "softplus-large",
    "sigmoid": "sigmoid-lines",
    "tanh": "tanh-lines",
}


@dataclass(frozen=True)
class FaultEffect:
    """What one way to compute changes against half precision.

    faults: a name of `FAULTS`, "all", or "none, fp32" for single precision. changed: of `tokens`
    results, how many have another likeliest token or label; None for a text's vector, which has
    none. largest: the greatest absolute difference of a logit, or of the vector's numbers. cosine:
    the least of a result's to that in half precision. first: the first op of a package that is off
    by more than half precision is at the package's outputs; "" if there is none.
    """

    faults: str
    tokens: int
    changed: int | None
    largest: float
    cosine: float
    first: str = ""


@dataclass(frozen=True)
class Numerics:
    """The result of `check_numerics`: `passed`, `reason`, and an effect for each fault and all."""

    passed: bool
    reason: str
    effects: list[FaultEffect]

    def facts(self) -> dict:
        """Plain JSON values; what is not finite as text."""
        rows = [{k: _finite(v) for k, v in asdict(one).items()} for one in self.effects]
        return {"passed": self.passed, "reason": self.reason, "effects": rows}

    def __str__(self) -> str:
        heading = ("faults", "claim", "changed", "largest", "cosine", "first apart")
        rows = [_row(one) for one in self.effects]
        said = f"numerics {'passed' if self.passed else 'failed'}: {self.reason}"
        return f"{table([heading, *rows])}\n\n{said}"


def check_numerics(bundle: Bundle | str | Path) -> Numerics:
    """Run a bundle's golden tokens with each published fault alone, and with all of them.

    Takes about a second a token for each 100 million weights, on one core. Raises InvalidBundle,
    and InvalidInput for a bundle that gives tokens and no logits.
    """
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    if bundle.manifest.task == "reranking":
        raise InvalidInput(
            f"{bundle.path}: a reranker gives one number of a text, which has no direction to "
            "compare; --parity compares it"
        )
    if bundle.manifest.task == "text-generation" and bundle.manifest.argmax_output:
        raise InvalidInput(
            f"{bundle.path}: converted with argmax_output, it gives tokens and no logits to "
            "compare; convert it without, for this check"
        )
    half = _results(bundle, _OpByOp())
    effects = []
    for name, precision in _ways():
        try:
            found = _results(bundle, MILBackend(precision))
        except InvalidBundle as error:  # a vector that is not finite
            effects.append(FaultEffect(name, len(half), None, inf, -1.0, str(error)))
            continue
        first = _first(bundle, precision) if precision.startswith("ane") else ""
        effects.append(_effect(bundle, name, found, half, first))
    return _judged(effects[0], effects[1:])


def _ways() -> Iterator[tuple[str, str]]:
    """Each way to compute: its name and its precision."""
    yield "none, fp32", "fp32"
    yield from ((name, f"ane:{name}") for name in FAULTS)
    yield "all", "ane"


class _OpByOp(MILBackend):
    """Half precision with every shortcut off, as programs with faults run."""

    def load(self, package: Path, function: str) -> LoadedFunction:
        program: Any = MLProgram(package, function).plain()
        return program


def _results(bundle: Bundle, backend: MILBackend) -> np.ndarray:
    """For the golden tokens: logits (n, V), a tagger's (n, N), or a text's vector (1, C)."""
    ids, task = bundle.golden()["tokens"], bundle.manifest.task
    if task == "text-generation":
        return Session(bundle, backend=backend, force=True).logits(ids)
    if task == "embedding":
        return Embedder(bundle, backend=backend, force=True).vectors([ids.tolist()])
    rows = [*Tagger(bundle, backend=backend, force=True).logits(ids)]
    return np.vstack(rows)


def _effect(
    bundle: Bundle, name: str, found: np.ndarray, half: np.ndarray, first: str
) -> FaultEffect:
    changed = None
    if bundle.manifest.task != "embedding":
        changed = int((found.argmax(1) != half.argmax(1)).sum())
    a, b = found.astype(np.float64), half.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.abs(a - b).max())
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosine = float(((a * b).sum(1) / lengths).min())
    return FaultEffect(name, len(half), changed, largest, cosine, first)


def _first(bundle: Bundle, precision: str) -> str:
    """The first op of the bundle that is off by more than half precision, in words."""
    golden = bundle.golden()
    for part in bundle.manifest.packages:
        function = _shortest(bundle, part, len(golden["tokens"]))
        own = part.called(function)
        ours = MLProgram(bundle.path / part.package, own, precision=precision)
        half = ours.plain("fp16")
        inputs = golden_inputs(bundle, golden, half, part, function)
        usual = max(gap.error for gap in diff(half, half.plain("fp32"), inputs).outputs)
        if gap := diff(ours, half, inputs, usual).first:
            return f"{part.package}, {function}: {gap.op} {gap.name!r}, {percent(gap.error)}"
    return ""


def _shortest(bundle: Bundle, part: Part, tokens: int) -> str:
    """The function with the fewest tokens a call; an encoder's has to hold all of them."""
    needed = 1 if bundle.manifest.task == "text-generation" else tokens
    fits = [name for name, of in part.functions.items() if of.tokens >= needed]
    return min(fits or part.functions, key=lambda name: part.functions[name].tokens)


def _judged(single: FaultEffect, effects: list[FaultEffect]) -> Numerics:
    worst = min(effects, key=lambda one: one.cosine if isfinite(one.cosine) else -inf)
    passed = worst.cosine >= LEAST  # NaN is not
    if not passed:
        limit = f"{LEAST} is the least that parity takes"
        said = f"with {worst.faults} the cosine to fp16 is {worst.cosine:.4f}; {limit}"
    elif worst.changed is None:
        said = f"the cosine to fp16 is {worst.cosine:.6f} or more with each fault and all"
    else:
        change = [f"{one.changed} by {one.faults}" for one in effects if one.changed]
        many = f"of {worst.tokens} tokens {', '.join(change) or 'none'} changed"
        said = f"{many}; the cosine to fp16 is {worst.cosine:.4f} or more"
    return Numerics(passed, said, [single, *effects])


def _row(one: FaultEffect) -> tuple[str, ...]:
    claim = CLAIMS.get(one.faults, "")
    grade = f"{claim} ({claims.find(claim).grade})" if claim else ""
    changed = "" if one.changed is None else f"{one.changed} of {one.tokens}"
    return (one.faults, grade, changed, f"{one.largest:.2g}", f"{one.cosine:.6f}", one.first)


def _finite(value):
    """JSON has no infinity and no NaN."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value
