"""Run the golden tokens through a bundle, package by package.

Every package runs on PyTorch's hidden state before it, so that a fault shows only where it is, and
again on the output of the packages before it, as in use. One package at a time is in memory.

Where the experts of a mixture are packages, the trunks between them run on the outputs of PyTorch's
experts and on the values of the trunks before. A trunk's `x` is compared with PyTorch's, and in
single precision so are the gates: in half precision a token with close scores may choose another
expert, so the share of tokens that choose PyTorch's is only reported. Each expert is compared with
PyTorch's on the first token, chosen by it or not.

Letters: C hidden size, E experts, L layers, T tokens of a call, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import inf, isnan

from ane_book.bundle import Bundle
from ane_book.bundle.parts import Part
from ane_book.evidence.parity.stage import ParityStage, judged, padded
from ane_book.host import pool
from ane_book.models import find
from ane_book.runtime.backends import MILBackend
from ane_book.runtime.model_runner import HostInputs, ModelRunner
from ane_book.runtime.shards import load_part, load_steps
import numpy as np

DECODED = 8  # golden tokens that are also decoded one by one; later ones differ by position alone


@dataclass(frozen=True)
class Run:
    """Successive calls of one function on the golden tokens: the values of each, and its tokens.

    taught: every package gets what PyTorch has before it, not what the packages before it give.
    """

    function: str
    calls: list[dict[str, np.ndarray]]
    tokens: int
    taught: bool = True

    def result(self, name: str) -> np.ndarray:
        """The value `name` for the tokens of all calls, (rows, tokens)."""
        return np.hstack([values[name][0, :, 0, : self.tokens] for values in self.calls])

    def teach(self, name: str, columns: np.ndarray) -> None:
        """Set a value of all calls to PyTorch's (rows, tokens)."""
        for i, values in enumerate(self.calls):
            hidden, own = values["hidden"], columns[:, i * self.tokens : (i + 1) * self.tokens]
            values[name] = padded(own, hidden.shape[3]).astype(hidden.dtype)

    def step(self, step) -> None:
        """Run one step of the layers in every call, from empty caches on."""
        step.clear()
        for values in self.calls:
            step.run(self.function, values, self.tokens)


def walk(bundle: Bundle, golden: dict[str, np.ndarray], precision: str) -> Iterator[ParityStage]:
    """Yield every stage in order, computed in "fp32" or "fp16"; the last is the whole bundle."""
    manifest, backend = bundle.manifest, partial(MILBackend, precision)
    runs = list(_runs(bundle, golden["tokens"], backend().dtype))
    yield judged("embedding", "", precision, runs[0].result("hidden"), golden["hidden"][0])
    for parts in _groups(bundle):
        first, experts = parts[0], parts[0].part == "experts"
        (step,) = load_steps(bundle, backend(), parts)
        if experts:
            yield _worst(bundle, golden, precision, parts)
        for run in runs:
            if not run.taught:
                run.step(step)
            elif experts:
                run.teach("y", golden["y"][first.span.start])
            else:
                run.teach("hidden", golden["hidden"][around(bundle, first)[0]])
                for name in manifest.handed:
                    run.teach(name, golden[name])
                run.step(step)
                yield _layers(bundle, golden, precision, first, run)
    end = _head if manifest.task == "text-generation" else _whole
    for run in runs:
        if not run.taught:
            yield from end(bundle, golden, precision, run)


def _groups(bundle: Bundle) -> Iterator[list[Part]]:
    """The packages before the head, in order, one by one, but the experts of a layer together."""
    layers = [part for part in bundle.manifest.packages if part.part != "head"]
    for _, parts in groupby(layers, lambda p: p.layers if p.part == "experts" else p.package):
        yield list(parts)


def around(bundle: Bundle, part: Part) -> tuple[int, int]:
    """Which of the golden hidden states are PyTorch's before and after a package."""
    if part.part == "head":
        return -1, -1
    if bundle.manifest.experts:
        return part.span.start, part.span.stop
    before = bundle.manifest.shards.index(part)
    return before, before + 1


def _runs(bundle: Bundle, ids: np.ndarray, dtype: np.dtype) -> Iterator[Run]:
    """Runs of every function that is compared, and those that no package is taught in: of a decoder
    by the function that reads prompts, of an encoder by each."""
    if bundle.manifest.task == "text-generation":
        feeds = HostInputs(bundle, dtype)
        for i, (function, n, starts) in enumerate(_calls(bundle, len(ids))):
            given = (feeds.of(function, ids[t : t + n], t) for t in starts)
            # Copied, since the next call changes them.
            calls = [{name: value.copy() for name, value in own.items()} for own in given]
            yield Run(function, calls, n)
            if i == 0:
                yield Run(function, [dict(values) for values in calls], n, taught=False)
        return
    rows = bundle.embedding[ids].astype(np.float32) * bundle.manifest.host.embedding_scale
    rows = rows if bundle.positions is None else rows + bundle.positions[: len(ids)]
    for function, T in bundle.manifest.functions.items():
        if len(ids) <= T:
            values = encoder_feeds(bundle, len(ids), T) | {"hidden": padded(rows.T, T)}
            values = {name: value.astype(dtype) for name, value in values.items()}
            for taught in (True, False):
                yield Run(function, [dict(values)], len(ids), taught)


def _calls(bundle: Bundle, tokens: int) -> Iterator[tuple[str, int, range]]:
    """The functions of all tiers, each with the golden tokens that a call takes, and the slots at
    which its calls begin. The first is the one that reads prompts in the largest tier."""
    manifest = bundle.manifest
    calls = {"prefill": (tokens, range(1)), "decode": (1, range(min(DECODED, tokens)))}
    if K := manifest.functions.get("verify"):
        n = min(K, tokens)
        calls["verify"] = n, range(0, tokens - n + 1, n)[:2]
    for function in sorted(manifest.tiered, key=lambda function: function != manifest.reading):
        yield function, *calls[manifest.names[function]]


def encoder_feeds(bundle: Bundle, tokens: int, T: int) -> dict[str, np.ndarray]:
    """The host's inputs of an encoder's packages, besides the hidden state, for one text."""
    manifest = bundle.manifest
    tables = manifest.host.tables(np.arange(T), manifest.context)
    window = manifest.tags.window if manifest.tags else None
    causal = manifest.vectors is not None and manifest.vectors.causal
    return tables | manifest.host.text_masks([tokens], T, window, causal)


def _routed(bundle: Bundle) -> bool:
    """Whether the model is a mixture of experts."""
    return find(bundle.config.architecture).signatures(bundle.config).mixture is not None


def _layers(bundle: Bundle, golden: dict, precision: str, part: Part, run: Run) -> ParityStage:
    """Compare what a package of layers gives with PyTorch's."""
    judge = partial(judged, part.package, run.function, precision)
    outputs = next(iter(part.functions.values())).outputs
    if "gates" not in outputs:
        name = "logits" if "logits" in outputs else "hidden"
        expected = golden[name] if name == "logits" else golden[name][around(bundle, part)[1]]
        found = run.result(name)
        routed = _routed(bundle) and not bundle.manifest.experts
        return judge(found, expected[:, : found.shape[1]], routed)
    x, gates, layer = run.result("x"), run.result("gates"), part.span.start
    n = x.shape[1]
    stage, expected = judge(x, golden["x"][layer][:, :n]), golden["gates"][layer][:, :n]
    same = float(((gates != 0) == (expected != 0)).all(axis=0).mean())
    if precision == "fp32":  # gates are at most 1, and all 0 for a token that takes no expert
        error = float(np.abs(gates - expected).max())
        stage = replace(stage, error=max(_error(stage), inf if np.isnan(error) else error))
    return replace(stage, agreement=same, tokens=n)


def _worst(bundle: Bundle, golden: dict, precision: str, experts: list[Part]) -> ParityStage:
    """The expert of a layer with the largest error on the first token.

    Errors are relative to the largest output of all experts, since they are added up: the output of
    one for a token that did not choose it may be a small difference of large numbers.
    """
    backend, layer = MILBackend(precision), experts[0].span.start
    name, T = next(iter(bundle.manifest.functions.items()))
    x = padded(golden["x"][layer][:, :1], T).astype(backend.dtype)
    gate = padded(np.ones((1, 1), np.float32), T).astype(backend.dtype)
    loudest = float(np.abs(golden["experts"][layer]).max())
    stages = []
    for part in experts:
        said = load_part(bundle, backend, part)[name].predict({"x": x, "gate": gate})["y"]
        expected = golden["experts"][layer, part.expert][:, None]
        stage = judged(part.package, name, precision, said[0, :, 0, :1], expected)
        error = inf if stage.max_abs is None else stage.max_abs / loudest
        stages.append(replace(stage, error=error))
    return max(stages, key=_error)


def _error(stage: ParityStage) -> float:
    return inf if stage.error is None or isnan(stage.error) else stage.error


def _head(bundle: Bundle, golden: dict, precision: str, run: Run) -> Iterator[ParityStage]:
    """The head's functions on PyTorch's hidden state, and on the layers' output."""
    name, reading = " ".join(part.package for part in bundle.manifest.head), bundle.manifest.reading
    runner = ModelRunner(bundle, MILBackend(precision), steps=[])
    widths = bundle.manifest.functions
    last, chain = (
        columns[None, :, None].astype(MILBackend(precision).dtype)
        for columns in (golden["hidden"][-1], run.result("hidden"))
    )
    calls = [(name, function, _last(last, T)) for function, T in widths.items()]
    for part, function, hidden in [*calls, ("whole", reading, _last(chain, widths[reading]))]:
        found = runner.head(hidden)[-len(golden["argmax"]) :]
        expected = golden["argmax"][-len(found) :]
        if isinstance(found, list):  # token ids
            stage = ParityStage(part, function, precision)
        else:
            stage = judged(part, function, precision, found[-1:].T, golden["logits"][:, None])
            found = found.argmax(axis=1)
        agreement = float((np.asarray(found) == expected).mean())
        yield replace(stage, agreement=agreement, tokens=len(expected))


def _last(hidden: np.ndarray, tokens: int) -> np.ndarray:
    """The last `tokens` columns of a hidden state, padded with zeros in front."""
    short = max(tokens - hidden.shape[3], 0)
    return np.pad(hidden[..., -tokens:], ((0, 0), (0, 0), (0, 0), (short, 0)))


def _whole(bundle: Bundle, golden: dict, precision: str, run: Run) -> Iterator[ParityStage]:
    """What an encoder makes of a text: labels of its tokens, or its vector."""
    manifest, judge = bundle.manifest, partial(judged, "whole", run.function, precision)
    if manifest.tags:
        found, expected = run.result("logits").astype(np.float32), golden["logits"]
        agreement = float((found.argmax(axis=0) == expected.argmax(axis=0)).mean())
        whole = judge(found, expected, _routed(bundle))
        yield replace(whole, agreement=agreement, tokens=found.shape[1])
        return
    assert manifest.vectors is not None, "what an encoder without labels has"
    column = pool(run.result("hidden").astype(np.float32), manifest.vectors.pooling)[:, None]
    if manifest.head:
        (part,), backend = manifest.head, MILBackend(precision)
        name, function = next(iter(load_part(bundle, backend, part).items()))
        given = padded(column, part.functions[name].tokens).astype(backend.dtype)
        (found,) = function.predict({"hidden": given}).values()
        column = found[0, :, 0, :1].astype(np.float32)
    with np.errstate(invalid="ignore"):
        column = column / np.linalg.norm(column)
    yield judge(column, golden["vector"][:, None])
