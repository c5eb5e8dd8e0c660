"""How fast one bundle loads and runs on one set of compute units, in a process of its own."""

from collections.abc import Callable
import os
from pathlib import Path
from statistics import median
import time

from ane_book.bundle import Bundle
from ane_book.evidence.mac import child
from ane_book.runtime import Embedder, Session, Tagger
from ane_book.runtime.backends import Backend, CoreMLBackend, MILBackend

__all__ = ["EXECUTOR", "measure_speed", "tell_speed"]

EXECUTOR = "executor"  # in place of compute units: `mlprogram`, on the CPU
PREFILLS, DECODES = 3, 32  # prompts of which the median is taken, tokens after one


def measure_speed(bundle: Bundle, units: str, folder: Path, timeout: float) -> dict:
    """Load and run a bundle in a child; folder: an empty one, the child's.

    Gives units, seconds of the first load (cold_s) and the second (warm_s), tokens a second
    (prefill_tps, decode_tps), and in `failed` how the child ended that did not finish.
    """
    request = {"what": "speed", "bundle": str(bundle.path.resolve()), "units": units}
    outcome = child.ask(request, folder, timeout)
    figures = {"units": units}
    for event in outcome.find("speed"):
        figures |= {name: event[name] for name in event.keys() - {"step", "next"}}
    if not list(outcome.find("done")):
        last = outcome.said.strip().splitlines()[-1:] or ["it said nothing"]
        figures["failed"] = f"{outcome.ended}, status {outcome.code}: {last[0][:300]}"
    return figures


def tell_speed(request: dict) -> None:
    """What the child does."""
    bundle, units = Bundle.open(request["bundle"]), request["units"]
    kind, work = KINDS[bundle.manifest.task]
    times = {}
    for which in ("cold_s", "warm_s"):
        started = time.perf_counter()
        loaded = kind(bundle, backend=_backend(units), force=True)
        times[which] = time.perf_counter() - started
    child.tell("speed", "its speed", **times)
    child.tell("speed", "the end", **work(loaded))
    child.tell("done", "the end")


def _backend(units: str) -> Backend:
    """Core ML's with a cache of this child's own: the first load uses nothing of an earlier one."""
    if units == EXECUTOR:
        return MILBackend()
    os.environ["ANE_BOOK_CACHE"] = str(child.own_folder())
    return CoreMLBackend(units)


def _generation(session: Session) -> dict[str, float]:
    T = session.bundle.manifest.functions["prefill"]
    T = min(T, session.context - 1)
    ids = session.bundle.golden()["tokens"][:T].tolist()
    prefill = _prefill(T, lambda: session.prefill(ids), before=session.reset)
    steps = min(DECODES, session.context - T)
    times = [_seconds(lambda: session.decode(ids[0])) for _ in range(steps)]
    return prefill | {"decode_tps": 1 / median(times)}


def _embedding(embedder: Embedder) -> dict[str, float]:
    ids = [embedder.bundle.golden()["tokens"].tolist()]
    return _prefill(len(ids[0]), lambda: embedder.vectors(ids))


def _tagging(tagger: Tagger) -> dict[str, float]:
    ids = tagger.bundle.golden()["tokens"]
    return _prefill(len(ids), lambda: list(tagger.logits(ids)))


def _prefill(tokens: int, call: Callable, before: Callable = lambda: None) -> dict[str, float]:
    """Tokens a second of a call; before: what precedes each. The first one warms up."""
    rates = []
    for _ in range(PREFILLS + 1):
        before()
        rates.append(tokens / _seconds(call))
    return {"prefill_tps": median(rates[1:])}


KINDS = {
    "text-generation": (Session, _generation),
    "embedding": (Embedder, _embedding),
    "token-classification": (Tagger, _tagging),
}


def _seconds(call: Callable) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started

