"""Time how fast a bundle loads and runs on one set of compute units, in a child process."""

from collections.abc import Callable
import json
import os
from pathlib import Path
from statistics import median
import sys
import time
from typing import Any

from ane_book.bundle import Bundle
from ane_book.runtime import Embedder, Session, Tagger
from ane_book.runtime.backends import Backend, CoreMLBackend, MILBackend
from mlprogram.ane.mac import child

PROBE = [sys.executable, "-m", "ane_book.evidence.speed"]
EXECUTOR = "executor"  # instead of compute units: run `mlprogram` on the CPU
PREFILLS, DECODES = 3, 32  # prompts, for their median; tokens to decode after one


def measure_speed(bundle: Bundle, units: str, folder: Path, timeout: float) -> dict:
    """Load and run a bundle in a child process, whose `folder` has to be empty.

    Returns units, seconds of the first load (cold_s) and the second (warm_s), tokens per second
    (prefill_tps, decode_tps), and `failed`: how the child ended if it did not finish.
    """
    request = {"bundle": str(bundle.path.resolve()), "units": units}
    outcome = child.ask(request, folder, timeout, command=PROBE)
    figures = {"units": units}
    for event in outcome.find("speed"):
        figures |= {name: event[name] for name in event.keys() - {"step", "next"}}
    if not list(outcome.find("done")):
        last = outcome.said.strip().splitlines()[-1:] or ["it said nothing"]
        figures["failed"] = f"{outcome.ended}, status {outcome.code}: {last[0][:300]}"
    return figures


def tell_speed(request: dict) -> None:
    """Called in the child: load, run, and report the times."""
    bundle, units = Bundle.open(request["bundle"]), request["units"]
    kind, work = KINDS[bundle.manifest.task]
    times = {}
    for which in ("cold_s", "warm_s"):
        started = time.perf_counter()
        if units != EXECUTOR:  # an empty cache, so that the first load is cold
            os.environ["ANE_BOOK_CACHE"] = str(child.own_folder())
        backend: Backend = MILBackend() if units == EXECUTOR else CoreMLBackend(units)
        loaded = kind(bundle, backend=backend, force=True)
        times[which] = time.perf_counter() - started
    child.tell("speed", "its speed", **times)
    child.tell("speed", "the end", **work(loaded))
    child.tell("done", "the end")


def _generation(session: Session) -> dict[str, float]:
    manifest = session.bundle.manifest
    T = min(manifest.functions[manifest.reading], session.context - 1)
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
    """Median tokens per second of `call`, after a first one to warm up; `before` precedes each."""
    rates = []
    for _ in range(PREFILLS + 1):
        before()
        rates.append(tokens / _seconds(call))
    return {"prefill_tps": median(rates[1:])}


KINDS: dict[str, tuple[type[Any], Callable[[Any], dict[str, float]]]] = {
    "text-generation": (Session, _generation),
    "embedding": (Embedder, _embedding),
    "token-classification": (Tagger, _tagging),
}


def _seconds(call: Callable) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    tell_speed(json.loads(Path(sys.argv[1]).read_text()))
