"""Claim loaded-3gb: with about 3 GB of programs loaded in one process, loading more ends in -14, or
4 GB run (both videlalvaro/ane-book, M4 Max).

Programs of 250 MB, each with weights of its own, are loaded one after another in one process and
kept, up to 8 GB or the first that is refused.

Question: How many bytes of programs can one process have loaded?
"""

import json
from pathlib import Path
import sys
import tempfile

from _settle import conv, graph, mb
from mlprogram.ane.mac.child import Outcome, run, tell
from mlprogram.ane.mac.residency import why_not

MEGABYTES, MOST = 250, 32  # of a program, programs
CHANNELS = 2048


def write(path: Path, number: int, layers: int = 30, channels: int = CHANNELS) -> None:
    """A program of `layers` 1x1 convolutions, whose weights differ by its number."""

    def build(x):
        x = mb.identity(x=x, name=f"program_{number}")
        for layer in range(layers):
            x = mb.relu(x=conv(x, channels), name=f"program_{number}_relu_{layer}")
        return mb.identity(x=x, name="y")

    graph(path, [(1, channels, 1, 64)], build)


def load_all(folder: Path) -> None:
    """In the child: write, compile, load and keep; a line for each program."""
    from coremltools import ComputeUnit
    from coremltools.models import CompiledMLModel
    from coremltools.models.utils import compile_model

    kept = []
    for number in range(MOST):
        path = folder / f"{number}.mlpackage"
        write(path, number)
        compiled = compile_model(str(path), str(folder / f"{number}.mlmodelc"))
        kept.append(CompiledMLModel(str(compiled), ComputeUnit.CPU_AND_NE))
        tell("loaded", f"program {number + 2}", programs=number + 1)


def decide(outcome: Outcome) -> str:
    last = max((event["programs"] for event in outcome.find("loaded")), default=0)
    loaded = f"{last} programs of {MEGABYTES} MB are loaded in one process"
    if outcome.ended == "exit" and not outcome.code:
        return f"{loaded}: all that were tried"
    said = [line for line in outcome.said.splitlines() if line.strip()]
    return (
        f"{loaded}, the next one ended it ({outcome.ended}, {outcome.code}): {said[-1][:300]}"
        if said
        else f"{loaded}, then it ended without a word ({outcome.ended}, {outcome.code})"
    )


def main(dry: bool) -> dict:
    reason = None if dry else why_not()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if dry or reason:
            from mlprogram import MLProgram

            for number in range(2):
                path = folder / f"{number}.mlpackage"
                write(path, number, layers=2, channels=64)
                MLProgram(path).predict(MLProgram(path).random_inputs(0))
            status, verdict = "dry run", reason or "two small programs written and executed"
        else:
            command = [sys.executable, __file__, "--load", name]
            status, verdict = "measured", decide(run(command, folder, 3600.0))
    return {"name": "loaded", "claim": "loaded-3gb", "status": status, "verdict": verdict}


if __name__ == "__main__":
    if "--load" in sys.argv:
        load_all(Path(sys.argv[-1]))
    else:
        print(json.dumps(main("--dry-run" in sys.argv)))
