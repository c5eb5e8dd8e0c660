"""How fast one bundle loads and runs on one set of compute units, in a process of its own.

    python -m ane_book.evidence.report.speed REQUEST.json

A load for the engine may take minutes, or the process with it (see `residency.child`).
"""

import json
import os
from pathlib import Path
from statistics import median
import sys
import time

from ane_book.bundle import Bundle
from ane_book.evidence.report.schema import Speed
from ane_book.evidence.residency.child import run
from ane_book.runtime import Embedder, Session, Tagger
from ane_book.runtime.backends import Backend, CoreMLBackend, MILBackend
import numpy as np

__all__ = ["EXECUTOR", "main", "measure_speed"]

EXECUTOR = "executor"  # in place of compute units: the library's own, on the CPU
PROBE = [sys.executable, "-m", "ane_book.evidence.report.speed"]
PREFILLS, DECODES = 3, 32  # prompts of which the median is taken, tokens after one


def measure_speed(bundle: Bundle, units: str, folder: Path, timeout: float) -> Speed:
    """Load and run a bundle in a child; folder: an empty one, the child's."""
    request = folder / "request.json"
    request.write_text(json.dumps({"bundle": str(bundle.path.resolve()), "units": units}))
    outcome = run([*PROBE, str(request)], folder, timeout)
    found = {key: value for event in outcome.find("speed") for key, value in event.items()}
    figures = {name: found[name] for name in Speed.model_fields if name in found}
    if not list(outcome.find("done")):
        last = outcome.said.strip().splitlines()[-1:] or ["it said nothing"]
        figures["failed"] = f"{outcome.ended}, status {outcome.code}: {last[0][:300]}"
    return Speed(**figures | {"units": units})


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    bundle, units = Bundle.open(request["bundle"]), request["units"]
    with Path(os.environ["ANE_BOOK_FOLDER"], "events.jsonl").open("a") as events:

        def tell(step: str, **facts) -> None:
            events.write(json.dumps({"step": step, "next": "the rest"} | facts) + "\n")
            events.flush()

        kind, work = KINDS[bundle.manifest.task]
        times = {}
        for which in ("cold_s", "warm_s"):
            started = time.perf_counter()
            loaded = kind(bundle, backend=_backend(units), force=True)
            times[which] = time.perf_counter() - started
        tell("speed", **times)
        tell("speed", **work(loaded))
        tell("done")


def _backend(units: str) -> Backend:
    return MILBackend() if units == EXECUTOR else CoreMLBackend(units)


def _generation(session: Session) -> dict[str, float]:
    T = session.bundle.manifest.functions["prefill"]
    T = min(T, session.context - 1)
    ids = session.bundle.golden()["tokens"][:T].tolist()
    rates = []
    for _ in range(PREFILLS + 1):  # the first one warms up
        session.reset()
        rates.append(T / _seconds(lambda: session.prefill(ids)))
    steps = min(DECODES, session.context - T)
    times = [_seconds(lambda: session.decode(ids[0])) for _ in range(steps)]
    return {"prefill_tps": median(rates[1:]), "decode_tps": 1 / median(times)}


def _embedding(embedder: Embedder) -> dict[str, float]:
    ids = [embedder.bundle.golden()["tokens"].tolist()]
    rates = [len(ids[0]) / _seconds(lambda: embedder.vectors(ids)) for _ in range(PREFILLS + 1)]
    return {"prefill_tps": float(np.median(rates[1:]))}


def _tagging(tagger: Tagger) -> dict[str, float]:
    ids = tagger.bundle.golden()["tokens"]
    rates = [len(ids) / _seconds(lambda: list(tagger.logits(ids))) for _ in range(PREFILLS + 1)]
    return {"prefill_tps": float(np.median(rates[1:]))}


KINDS = {
    "text-generation": (Session, _generation),
    "embedding": (Embedder, _embedding),
    "token-classification": (Tagger, _tagging),
}


def _seconds(call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
