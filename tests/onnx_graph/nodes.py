"""Run ONNX's own node tests on what the converter makes of them, and write down what came out.

    python tests/onnx_graph/nodes.py --workers 2

The tests come with the package `onnx` (`onnx.backend.test`): a model of one operator each, or of
the operators that ONNX defines it by, with inputs and expected outputs. Each is converted in single
precision and run by the executor, in ONNX Runtime's place, and held to ONNX's tolerances. A graph
of Core ML has known shapes; where a test gives what shapes the graph (axes, pads, sizes) as an
input instead, as no exporter does, it is made known, and the record says so. Written:
research/onnx-nodes.json.
"""

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
import gc
import json
from multiprocessing import get_context
from pathlib import Path
import re
import sys
import tempfile
import warnings

from ane_book.errors import AneBookError
import numpy as np

RESULT = Path(__file__).parents[2] / "research" / "onnx-nodes.json"


def cases() -> dict:
    """ONNX's test cases by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


def run_case(case) -> dict:
    """What came of one case: its operators, the outcome, and why."""
    record = {"name": case.name, "operators": sorted({n.op_type for n in case.model.graph.node})}
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = judge(case, Path(folder))
        return record | {"outcome": "fixed" if known else "passed", "known": known, "why": ""}
    except AneBookError as error:
        return record | {
            "outcome": "refused",
            "known": [],
            "why": str(error).split("/model.onnx: ")[-1],
        }
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return record | {"outcome": "failed", "known": [], "why": why}


def judge(case, folder: Path) -> list[str]:
    """Convert, run and compare; the names of the inputs that had to be known."""
    from ane_book.conversion.onnx import convert_graph
    from ane_book.conversion.onnx.walk import NeedsConstant
    import onnx

    file = folder / "model.onnx"
    onnx.save(case.model, file)
    inputs, outputs = case.data_sets[0]
    given = {f.name: value for f, value in zip(case.model.graph.input, inputs, strict=False)}
    known: dict[str, np.ndarray] = {}
    while True:
        try:
            package = convert_graph(file, folder / "model.mlpackage", "fp32", constants=known)
            break
        except NeedsConstant as error:
            if error.value not in given or error.value in known:
                raise
            known[error.value] = given[error.value]
    compare(case, package, {n: v for n, v in given.items() if n not in known}, outputs)
    return sorted(known)


def compare(case, package: Path, given: dict, outputs: list) -> None:
    """The executor's outputs against ONNX's, in ONNX's shapes and to its tolerance."""
    from ane_book.mil import MLProgram

    program = MLProgram(package, precision="fp32")
    arrays = dict(zip(program.inputs, map(as_core_ml, given.values()), strict=True))
    found = list(program.predict(arrays).values())
    assert len(found) == len(outputs)
    for got, want in zip(found, outputs, strict=True):
        want = np.asarray(want)
        assert got.shape == (want.shape or (1,)), f"shape {got.shape}, not {want.shape}"
        kind = bool if want.dtype == bool else got.dtype
        np.testing.assert_allclose(
            got.reshape(want.shape).astype(kind), want.astype(kind), case.rtol, case.atol
        )


def as_core_ml(value) -> np.ndarray:
    array = np.atleast_1d(np.asarray(value))
    whole = array.dtype.kind in "iub" or array.dtype.name.startswith(("int", "uint"))
    return array.astype(np.int32 if whole else np.float32)


_CASES: dict = {}


def _begin() -> None:
    from ane_book.conversion.onnx import walk  # noqa: F401  coremltools, and all of the table
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
                Path("/tmp/onnx-nodes-raw.json").write_text(json.dumps(records))
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes to share the cases")
    parser.add_argument("--only", default="", help="cases with this in their name, unrecorded")
    chosen = parser.parse_args()
    names = [name for name in cases() if re.search(chosen.only, name)]
    records = run_all(names, chosen.workers)
    print(Counter(r["outcome"] for r in records))
    Path("/tmp/onnx-nodes-raw.json").write_text(json.dumps(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
