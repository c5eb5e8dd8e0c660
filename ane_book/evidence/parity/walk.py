"""Run the golden tokens through a bundle, package by package.

Every package runs on PyTorch's hidden state before it, so that a fault shows only where it is, and
again on the output of the packages before it, as in use. One package at a time is in memory.

Letters: C hidden size, T golden tokens, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import replace

from ane_book.bundle import Bundle
from ane_book.evidence.parity.experts import Run, walk_experts
from ane_book.evidence.parity.stage import ParityStage, judged, padded
from ane_book.host import pool
from ane_book.models import find
from ane_book.runtime.backends import MILBackend
from ane_book.runtime.model_runner import HostInputs, ModelRunner
from ane_book.runtime.shards import load_part, load_steps
import numpy as np

DECODED = 8  # golden tokens that are also decoded one by one; later ones differ by position alone


def walk(bundle: Bundle, golden: dict[str, np.ndarray], precision: str) -> Iterator[ParityStage]:
    """Yield every stage in order, computed in "fp32" or "fp16"; the last is the whole bundle."""
    decoder, mixed = bundle.manifest.task == "text-generation", bool(bundle.manifest.experts)
    way = ((_encoder, _mixed_encoder), (_decoder, _mixed_decoder))[decoder][mixed]
    yield from way(bundle, golden, precision)


def _decoder(bundle: Bundle, golden: dict, precision: str) -> Iterator[ParityStage]:
    ids, hidden = golden["tokens"], golden["hidden"]
    dtype, tiered = MILBackend(precision).dtype, bundle.manifest.tiered
    feeds, steps = HostInputs(bundle, dtype), list(_steps(bundle, len(ids)))
    reading, width, chain = steps[0][0], steps[0][1], _calls(feeds, ids, *steps[0])
    yield judged("embedding", "", precision, _columns(chain, width), hidden[0])
    routed = _routed(bundle)
    for i, part in enumerate(bundle.manifest.shards):
        name, (step,) = part.package, load_steps(bundle, MILBackend(precision), [part])
        before = given(bundle, golden, i, dtype)
        for function, n, starts in steps:
            results = []
            for t in starts:
                own, (K, _) = feeds.of(function, ids[t : t + n], t), tiered[function]
                own |= {key: padded(v[0, :, 0, t : t + n], K) for key, v in before.items()}
                step.run(function, own, n)
                results.append(own)
            found = _columns(results, n)
            expected = hidden[i + 1][:, : found.shape[1]]
            yield judged(name, function, precision, found, expected, routed)
            step.clear()
        for values in chain:
            step.run(reading, values, width)
    yield from _ends(bundle, golden, precision, _columns(chain, width).astype(dtype))


def _steps(bundle: Bundle, tokens: int) -> Iterator[tuple[str, int, range]]:
    """The functions of all tiers, each with the golden tokens that a call takes, and the slots at
    which its calls begin. The first is the one that reads prompts in the largest tier."""
    manifest = bundle.manifest
    calls = {"prefill": (tokens, range(1)), "decode": (1, range(min(DECODED, tokens)))}
    if K := manifest.functions.get("verify"):
        n = min(K, tokens)
        calls["verify"] = n, range(0, tokens - n + 1, n)[:2]
    for function in sorted(manifest.tiered, key=lambda function: function != manifest.reading):
        yield function, *calls[manifest.names[function]]


def _calls(
    feeds: HostInputs, ids: np.ndarray, function: str, n: int, starts: range
) -> list[dict[str, np.ndarray]]:
    """The inputs of calls of a function for n tokens each, copied: the next call changes them."""
    given = (feeds.of(function, ids[t : t + n], t) for t in starts)
    return [{name: value.copy() for name, value in own.items()} for own in given]


def _columns(calls: list[dict[str, np.ndarray]], n: int) -> np.ndarray:
    """The hidden states (C, tokens) of the n tokens of each call."""
    return np.hstack([values["hidden"][0, :, 0, :n] for values in calls])


def _mixed_decoder(bundle: Bundle, golden: dict, precision: str) -> Iterator[ParityStage]:
    """The stages of a decoder whose experts are packages."""
    ids, dtype = golden["tokens"], MILBackend(precision).dtype
    feeds, steps = HostInputs(bundle, dtype), list(_steps(bundle, len(ids)))
    runs = [Run(step[0], _calls(feeds, ids, *step), step[1]) for step in steps]
    whole = Run(steps[0][0], _calls(feeds, ids, *steps[0]), steps[0][1], taught=False)
    hidden = whole.result("hidden")
    yield judged("embedding", "", precision, hidden, golden["hidden"][0])
    yield from walk_experts(bundle, golden, precision, [*runs, whole])
    yield from _ends(bundle, golden, precision, whole.result("hidden").astype(dtype))


def _routed(bundle: Bundle) -> bool:
    """Whether the model is a mixture of experts."""
    return find(bundle.config.architecture).signatures(bundle.config).mixture is not None


def given(bundle: Bundle, golden: dict, program: int, dtype: np.dtype) -> dict[str, np.ndarray]:
    """PyTorch's inputs of a package of layers: hidden state (1, C, 1, T), carried (1, R, 1, T)."""
    arrays = {name: golden[name] for name in bundle.manifest.handed} | {
        "hidden": golden["hidden"][program]
    }
    return {name: array[None, :, None].astype(dtype) for name, array in arrays.items()}


def _ends(bundle: Bundle, golden: dict, precision: str, chain: np.ndarray) -> Iterator[ParityStage]:
    """The head's functions on PyTorch's hidden state, and on the shards' output (C, T)."""
    name, reading = " ".join(part.package for part in bundle.manifest.head), bundle.manifest.reading
    runner = ModelRunner(bundle, MILBackend(precision), steps=[])
    last = golden["hidden"][-1][None, :, None].astype(chain.dtype)
    given = {own: _last(last, T) for own, T in bundle.manifest.functions.items()}
    given |= {"whole": _last(chain[None, :, None], bundle.manifest.functions[reading])}
    for function, hidden in given.items():
        found = runner.head(hidden)[-len(golden["argmax"]) :]
        expected = golden["argmax"][-len(found) :]
        part, called = ("whole", reading) if function == "whole" else (name, function)
        if isinstance(found, list):  # token ids
            stage = ParityStage(part, called, precision)
        else:
            logits = golden["logits"][:, None]
            stage = judged(part, called, precision, found=found[-1:].T, expected=logits)
            found = found.argmax(axis=1)
        agreement = float((np.asarray(found) == expected).mean())
        yield replace(stage, agreement=agreement, tokens=len(expected))


def _last(hidden: np.ndarray, tokens: int) -> np.ndarray:
    """The last `tokens` columns of a hidden state, padded with zeros in front."""
    short = max(tokens - hidden.shape[3], 0)
    return np.pad(hidden[..., -tokens:], ((0, 0), (0, 0), (0, 0), (short, 0)))


def _encoder(bundle: Bundle, golden: dict, precision: str) -> Iterator[ParityStage]:
    manifest, hidden, n = bundle.manifest, golden["hidden"], len(golden["tokens"])
    given = bundle.embedding[golden["tokens"]].astype(np.float32)  # (n, C)
    given = given * manifest.host.embedding_scale
    given = given if bundle.positions is None else given + bundle.positions[:n]
    yield judged("embedding", "", precision, given.T, hidden[0])
    functions = {name: T for name, T in manifest.functions.items() if n <= T}
    chains = {name: padded(given.T, T) for name, T in functions.items()}
    for i, part in enumerate(manifest.shards):
        backend = MILBackend(precision)
        loaded = load_part(bundle, backend, part)
        for name, T in functions.items():
            own = encoder_feeds(bundle, n, T)
            (output,) = part.functions[name].outputs
            own = {key: value for key, value in own.items() if key in part.functions[name].inputs}

            def run(hidden, run=loaded[name].predict, own=own, output=output, dtype=backend.dtype):
                feeds = own | {"hidden": hidden}
                return run({key: value.astype(dtype) for key, value in feeds.items()})[output]

            expected = golden["logits"] if output == "logits" else hidden[i + 1]
            found = run(padded(hidden[i], T))[0, :, 0, :n]
            yield judged(part.package, name, precision, found, expected, _routed(bundle))
            chains[name] = run(chains[name])
    for name, chain in chains.items():
        columns = chain[0, :, 0, :n].astype(np.float32)  # (C, n), or (N, n) of labels
        if manifest.tags:
            yield _labels(name, precision, columns, golden["logits"], _routed(bundle))
            continue
        assert manifest.vectors is not None, "what an encoder without labels has"
        vector = pool(columns, manifest.vectors.pooling)[:, None]
        vector = _pooled(bundle, precision, vector) if manifest.head else vector
        with np.errstate(invalid="ignore"):
            vector = vector / np.linalg.norm(vector)
        yield judged("whole", name, precision, vector, golden["vector"][:, None])


def _pooled(bundle: Bundle, precision: str, column: np.ndarray) -> np.ndarray:
    """What an encoder's head makes of a pooled column (C, 1): (E, 1)."""
    backend, (part,) = MILBackend(precision), bundle.manifest.head
    name, function = next(iter(load_part(bundle, backend, part).items()))
    given = padded(column, part.functions[name].tokens).astype(backend.dtype)
    (found,) = function.predict({"hidden": given}).values()
    return found[0, :, 0, :1].astype(np.float32)


def _labels(
    name: str, precision: str, found: np.ndarray, expected: np.ndarray, routed: bool
) -> ParityStage:
    """Compare a tagger's logits (N, n)."""
    agreement = float((found.argmax(axis=0) == expected.argmax(axis=0)).mean())
    whole = judged("whole", name, precision, found, expected, routed)
    return replace(whole, agreement=agreement, tokens=found.shape[1])


def _mixed_encoder(bundle: Bundle, golden: dict, precision: str) -> Iterator[ParityStage]:
    """The stages of a tagger whose experts are packages."""
    manifest, n, dtype = bundle.manifest, len(golden["tokens"]), MILBackend(precision).dtype
    given = bundle.embedding[golden["tokens"]].astype(np.float32).T  # (C, n)
    yield judged("embedding", "", precision, given, golden["hidden"][0])
    runs = []
    for name, T in ((name, T) for name, T in manifest.functions.items() if n <= T):
        feeds = encoder_feeds(bundle, n, T) | {"hidden": padded(given, T)}
        values = {key: value.astype(dtype) for key, value in feeds.items()}
        runs += [Run(name, [dict(values)], n, taught) for taught in (True, False)]
    yield from walk_experts(bundle, golden, precision, runs)
    for run in (run for run in runs if not run.taught):
        found = run.result("logits")
        yield _labels(run.function, precision, found, golden["logits"], routed=True)


def encoder_feeds(bundle: Bundle, tokens: int, T: int) -> dict[str, np.ndarray]:
    """The host's inputs of an encoder's packages, besides the hidden state, for one text."""
    manifest = bundle.manifest
    tables = manifest.host.tables(np.arange(T), manifest.context)
    window = manifest.tags.window if manifest.tags else None
    causal = manifest.vectors is not None and manifest.vectors.causal
    return tables | manifest.host.text_masks([tokens], T, window, causal)
