"""Run ONNX's own node tests on what the converter makes of them, and write down what came out.

    python tests/onnx/nodes.py --workers 2

The tests come with the package `onnx` (`onnx.backend.test`): a model of one operator each, or of
the operators that ONNX defines it by, with inputs and expected outputs. Each is converted in single
precision and run by the executor, in ONNX Runtime's place, and held to ONNX's tolerances. A graph
of Core ML has known shapes; where a test gives what shapes the graph (axes, pads, sizes) as an
input instead, as no exporter does, it is made known, and the record says so. Written:
research/onnx-nodes.json.
"""

import argparse
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from datetime import date
import gc
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
import re
import sys
import tempfile
import warnings

from _verdict import as_core_ml
from mlprogram.errors import MLProgramError
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _lines import lines

RESULT = Path(__file__).parents[2] / "research" / "onnx-nodes.json"


def cases() -> dict:
    """ONNX's test cases by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


def run_case(case) -> dict:
    """What came of one case: its operators, the outcome, and why."""
    from mlprogram.onnx.file import opset_of

    operators = sorted({node.op_type for node in case.model.graph.node})
    record = {"name": case.name, "operators": operators, "opset": opset_of(case.model)}
    found = {"outcome": "passed", "known": [], "why": ""}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            package, given, known = convert(case, Path(folder))
            compare(case, package, given)
            found |= {"outcome": "fixed" if known else "passed", "known": known}
        except Folded:
            found["outcome"] = "folded"
        except Refused as error:
            found |= {"outcome": "refused", "why": str(error)}
        except Exception as error:
            why = " ".join(str(error).split()).replace(folder, "")[:300]
            found |= {"outcome": "failed", "why": f"{type(error).__name__}: {why}"}
    return record | found


class Refused(Exception):
    """The converter said no, in its one error."""


class Folded(Exception):
    """Nothing is left for Core ML to compute: all inputs had to be known."""


def convert(case, folder: Path) -> tuple[Path, dict[str, np.ndarray], list[str]]:
    """The package, the inputs that it takes, and the names of those that had to be known."""
    from mlprogram.onnx.graph import convert_graph
    from mlprogram.onnx.graph.translate import NeedsConstant
    import onnx

    onnx.save(case.model, folder / "model.onnx")
    names = [feature.name for feature in case.model.graph.input]
    given = dict(zip(names, map(as_array, case.data_sets[0][0]), strict=False))
    known = {n: a for n, a in given.items() if not a.size}  # Core ML has no empty tensors
    while known.keys() < given.keys() or not given:
        free = {name: array for name, array in given.items() if name not in known}
        shapes = {name: array.shape for name, array in free.items()}
        where = folder / "model.onnx", folder / "model.mlpackage"
        try:
            return convert_graph(*where, "fp32", shapes, known), free, sorted(known)
        except NeedsConstant as error:
            known |= {name: given[name] for name in error.origins}
        except MLProgramError as error:
            raise Refused(str(error).replace(f"{folder}/", "")) from None
    raise Folded


def compare(case, package: Path, given: dict[str, np.ndarray]) -> None:
    """The executor's outputs against ONNX's, in ONNX's shapes and to its tolerance."""
    from mlprogram import MLProgram

    program = MLProgram(package, precision="fp32")
    arrays = dict(zip(program.inputs, map(as_core_ml, given.values()), strict=True))
    found = list(program.predict(arrays).values())
    outputs = case.data_sets[0][1]
    assert len(found) == len(outputs)
    for got, want in zip(found, outputs, strict=True):
        want = as_array(want)
        assert got.shape == (want.shape or (1,)), f"shape {got.shape}, not {want.shape}"
        kind = bool if want.dtype == bool else got.dtype
        np.testing.assert_allclose(
            got.reshape(want.shape).astype(kind), want.astype(kind), *tolerance(case, want)
        )


def tolerance(case, want: np.ndarray) -> tuple[float, float]:
    """ONNX's; of values that ONNX rounds to 16 bits at each step, two steps of the largest."""
    step = {"float16": 2**-10, "bfloat16": 2**-7}.get(want.dtype.name)
    if step is None:
        return case.rtol, case.atol
    sizes = np.abs(want.astype(np.float32))
    largest = float(sizes[np.isfinite(sizes)].max(initial=0))
    return max(case.rtol, step), max(case.atol, 2 * step * largest)


def as_array(value) -> np.ndarray:
    from onnx import TensorProto, numpy_helper

    if isinstance(value, list):  # a sequence, which is none of Core ML's
        return np.empty(len(value), object)
    return np.asarray(numpy_helper.to_array(value) if isinstance(value, TensorProto) else value)


_CASES: dict = {}


def _begin() -> None:
    from mlprogram.onnx.graph import translate  # noqa: F401  coremltools, and all of the table
    import torch

    torch.set_num_threads(1)
    _CASES.update(cases())
    gc.freeze()  # coremltools collects garbage at each conversion


def _run(name: str) -> dict:
    return run_case(_CASES[name])


def run_all(names: list[str], workers: int) -> list[dict]:
    """A record a case. A process that dies ends it all: nothing of the converter may."""
    records = []
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin) as pool:
        for record in pool.map(_run, names, chunksize=8):
            records.append(record)
            if len(records) % 100 == 0:
                print(f"{len(records)} of {len(names)}", file=sys.stderr, flush=True)
    return records


def is_claimed(record: dict) -> bool:
    """Whether all operators of a case are in the table, unrolled, or written out as others."""
    from mlprogram.onnx.graph.control import CONTROL
    from mlprogram.onnx.graph.definitions import is_written_out
    from mlprogram.onnx.graph.ops import OPERATORS

    known = {*OPERATORS, *CONTROL}
    return all(n in known or is_written_out(n, record["opset"]) for n in record["operators"])


def summary(records: list[dict]) -> dict:
    """Counts, of the claimed and of all; operators; and every case that did not pass, with why."""
    claimed = [r for r in records if is_claimed(r) and r["outcome"] != "folded"]
    operators, refused = defaultdict(Counter), defaultdict(list)
    for record in records:
        for name in record["operators"] if len(record["operators"]) == 1 else ():
            operators[name][record["outcome"]] += 1
        if record["outcome"] == "refused":
            refused[reason(record["why"])].append(record["name"])
    return {
        "cases": len(records),
        "outcomes": dict(sorted(Counter(r["outcome"] for r in records).items())),
        "claimed": dict(sorted(Counter(r["outcome"] for r in claimed).items())),
        "operators": {name: dict(found) for name, found in sorted(operators.items())},
        "failed": {r["name"]: r["why"] for r in records if r["outcome"] == "failed"},
        "refused": {why: refused[why] for why in sorted(refused)},
        "fixed": sorted(r["name"] for r in records if r["outcome"] == "fixed"),
    }


#: What of a refusal is of the one case: where it stands, and what is put instead.
SPOKEN = {
    r"^(.*?Core ML is not given |model.onnx: )": "",
    r"^.*?(input|output) '[^']*' (has|is of type)": r"\1 \2",
    r" has shape \([^)]*\);.*| has an? .*": " has a shape that Core ML does not take",
    r"(input) '[^']*'": r"\1",
    r"[:;] .*|; near are .*": "",
}


def reason(why: str) -> str:
    """What was said, without the names and sizes of the one case."""
    for pattern, instead in SPOKEN.items():
        why = re.sub(pattern, instead, why, count=1)
    return why.strip()[:100]


def headline(found: dict) -> str:
    """What README says of it; a test holds it to the record."""
    claimed = found["claimed"]
    passed = claimed["passed"] + claimed["fixed"]
    return (
        f"ONNX's node tests: {passed:,} of {sum(claimed.values()):,} pass, "
        f"{claimed['refused']:,} are refused, {claimed['failed']:,} fail"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes to share the cases")
    workers = parser.parse_args().workers
    records = run_all(list(cases()), workers)
    versions = {n: metadata.version(n) for n in ("onnx", "coremltools", "torch", "numpy")}
    result = {"date": date.today().isoformat(), "versions": versions} | summary(records)
    RESULT.write_text(lines(result, depth=2) + "\n")
    print(headline(result))
    for name, why in result["failed"].items():
        print(f"failed: {name}\n  {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
