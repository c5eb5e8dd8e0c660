"""The command `run`: run a package and report results, time, memory and loss of precision."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from errno import EEXIST
from pathlib import Path
import time
from typing import Any
from zipfile import ZipFile

from mlprogram.analysis.memory import Memory, peak_resident, predict
from mlprogram.arithmetic import check_semantics
from mlprogram.compare import numerics
from mlprogram.errors import InvalidInput
from mlprogram.files import written_whole
from mlprogram.package.description import by_name, load_inputs
from mlprogram.run.pipeline import Pipeline, open_model
from mlprogram.run.precision import PRECISIONS
from mlprogram.run.program import MLProgram, State
from mlprogram.tables import table
from mlprogram.terminal import plain
import numpy as np

#: The most findings of a kind that the report shows.
SHOWN = 3


def execute(
    path: Path,
    function: str | None = None,
    inputs: Path | None = None,
    precision: str = "fp16",
    seed: int = 0,
    out: Path | None = None,
    semantics: str | None = None,
) -> dict:
    """Run a function of a package twice and report on it in plain JSON values.

    inputs: a .npz file; random ones if None. States start at zero. out: a .npz file for the outputs
    of the first call. semantics: see `MLProgram`. In the result, `seconds` are those to open, of
    the first call and of the next one; `memory` is `Memory` in bytes, and the growth of the
    process's peak. Raises InvalidInput.
    """
    before, started = peak_resident(), time.perf_counter()
    program = open_model(path, function, precision, check_semantics(semantics))
    memory = program.memory if isinstance(program, MLProgram) else None  # which compiles
    seconds = {"load": time.perf_counter() - started}
    arrays = arrays_of(program, inputs, seed)
    state = program.make_state() if program.states else None
    outputs, seconds["first"] = _timed(program, arrays, state)
    _, seconds["next"] = _timed(program, arrays, state)
    after = peak_resident()
    grown = None if before is None or after is None else after - before
    if out:
        _save(out, outputs)
    facts = {
        "function": program.name,
        "precision": precision,
        "semantics": semantics,
        "on": str(inputs) if inputs else f"random inputs, seed {seed}",
        "inputs": {name: _facts(value) for name, value in arrays.items()},
        "outputs": {name: _facts(value) for name, value in outputs.items()},
        "seconds": seconds,
    }
    if memory and isinstance(program, MLProgram):
        facts |= _examined(program, arrays, memory, grown)
    return facts


def _examined(program: MLProgram, arrays: Mapping, memory: Memory, grown: int | None) -> dict:
    """The part of the report that only a program has, not a pipeline: memory and precision."""
    if memory.values is None:  # the shapes that the program leaves open are known now
        memory = replace(memory, values=_values(program, arrays))
    return {
        "memory": asdict(memory) | {"predicted": memory.total, "measured": grown},
        "findings": [
            asdict(finding) | {"largest": plain(finding.largest), "text": str(finding)}
            for finding in numerics.report(program, arrays)
        ],
    }


def execution_report(facts: dict) -> str:
    """The result of `execute` as text."""
    rows = [
        (part[:-1], name, *_cells(value))
        for part in ("inputs", "outputs")
        for name, value in facts[part].items()
    ]
    calls = ", ".join(f"{call} {_short(time)}" for call, time in facts["seconds"].items())
    more = [("seconds", calls), *(_examined_rows(facts) if "memory" in facts else ())]
    how = PRECISIONS[facts["precision"]]
    how += f", arithmetic as {facts['semantics']}" if facts["semantics"] else ""
    head = f"run of {facts['function']}, computed {how}, on {facts['on']}"
    return "\n".join([head, table(rows, indent=2), "", table(more, indent=2)])


def _examined_rows(facts: dict) -> list[tuple[str, str]]:
    memory, parts = facts["memory"], ("mapped", "laid_out", "states", "values")
    needs = ", ".join(f"{part.replace('_', ' ')} {_bytes(memory[part])}" for part in parts)
    more = [("predicted", f"{memory['predicted']:,} bytes: {needs}")]
    if memory["measured"] is not None:
        more.append(("measured", f"{memory['measured']:,} bytes more of this process at its peak"))
    more += [
        ("numerics", line)
        for line in list(_findings(facts["findings"])) or ["no overflow, NaN or lost bits"]
    ]
    return more


def _findings(findings: list[dict]) -> Iterator[str]:
    """A line for each of the first findings of each kind, and one for the number of others."""
    for kind in dict.fromkeys(finding["kind"] for finding in findings):
        texts = [finding["text"] for finding in findings if finding["kind"] == kind]
        yield from texts[:SHOWN]
        if len(texts) > SHOWN:
            yield f"and {len(texts) - SHOWN} more like it ({kind}); --json lists all"


def arrays_of(
    program: MLProgram | Pipeline, inputs: Path | None, seed: int
) -> Mapping[str, Any]:
    """A program's inputs: the arrays of a .npz file by name, or random ones."""
    return by_name(load_inputs(inputs), program.inputs) if inputs else program.random_inputs(seed)


def _save(path: Path, outputs: Mapping) -> None:
    """Write a .npz file atomically; unlike `np.savez` it takes every name of an output."""
    try:
        if path.exists() and not path.is_file():
            raise FileExistsError(EEXIST, "is no file")
        with written_whole(path) as unfinished, ZipFile(unfinished, "w") as file:
            for name, value in outputs.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, _array(value), allow_pickle=False)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written ({error.strerror})") from None


def _timed(
    program: MLProgram | Pipeline, arrays: Mapping, state: State | None
) -> tuple[dict, float]:
    """The outputs of one call, and its seconds."""
    started = time.perf_counter()
    outputs = program.predict(arrays, state)
    return outputs, time.perf_counter() - started


def _values(program: MLProgram, arrays: Mapping[str, np.ndarray]) -> int | None:
    """The peak bytes of live values with the shapes of these inputs."""
    state = program.make_state() if program.states else None
    given = {name: array.shape for name, array in arrays.items()}
    shapes = given | {name: array.shape for name, array in program.plain().trace(arrays, state)}
    return predict(program.package.functions[program.name], program.precision == "fp32", shapes)[1]


def _array(value: object) -> np.ndarray:
    """An output as an array: of an image its pixels, of a dict of probabilities its values."""
    return np.array(list(value.values()) if isinstance(value, dict) else value)


def _facts(value: object) -> dict[str, Any]:
    """Type, shape and range of a value; of a classifier its label and probabilities."""
    if isinstance(value, dict):
        likeliest = sorted(value, key=lambda label: value[label], reverse=True)[:3]
        return {"classes": len(value), "likeliest": {str(key): value[key] for key in likeliest}}
    if isinstance(value, str | int):
        return {"label": value}
    array = _array(value)
    facts: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size:
        wide = array.astype(np.float64)
        facts |= {name: plain(float(getattr(wide, name)())) for name in ("min", "max", "mean")}
    return facts


def _cells(facts: dict) -> tuple[str, ...]:
    if "label" in facts:
        return (repr(facts["label"]), "", "", "")
    if "classes" in facts:
        likeliest = ", ".join(f"{key} {_short(value)}" for key, value in facts["likeliest"].items())
        return (f"{facts['classes']:,} classes", likeliest, "", "")
    type_ = f"{facts['dtype']}({', '.join(map(str, facts['shape']))})"
    known = [name for name in ("min", "max", "mean") if name in facts]
    cells = [f"{name} {_short(facts[name])}" for name in known]
    return (type_, *cells, *[""] * (3 - len(cells)))


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _short(value: float | str) -> str:
    return f"{float(value):.4g}"
