"""Convert what others export, and hold it to ONNX Runtime; write down what came out.

    python tests/onnx/field.py --folder build/field

The architectures of `architectures.py` are exported by torch in four ways: by its older exporter
and by its present one, each as it is and with sizes left open, so that the graph then runs at
others than it was traced at. Each graph is converted in both precisions and judged (`_verdict.py`),
by a process of its own that is ended when it takes too long. `--graphs` names a folder with graphs
of other origin; a file sources.json there says where each is from.

What is done is kept in the folder, a line of JSON a graph. `--due wrong crash` does those of these
outcomes again, and `--due` alone no more than write the record of what there is:
research/measurements/onnx_field.json.
"""

import argparse
from collections import Counter, defaultdict
from datetime import date
from importlib import metadata
import json
from multiprocessing import get_context
from pathlib import Path
import platform
import sys
import traceback
import warnings

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parent))
from _lines import lines
from _verdict import TOLERANCE, judge, oracle, said, some_inputs

RESULT = Path(__file__).parents[2] / "research" / "measurements" / "onnx_field.json"
WAYS = ("older", "older_open", "present", "present_open")
LIMIT = 300  # seconds for a graph


def export(name: str, way: str, folder: str) -> dict:
    """Write an architecture's graph and what it is given; the record says why it could not be."""
    from _models import Wrapped, build, given
    import torch

    torch.set_num_threads(1)
    path = Path(folder) / f"{name}-{way}.onnx"
    arrays = given(name, 2)
    model = Wrapped(build(name), list(arrays))
    how = {"input_names": list(arrays), "dynamo": way.startswith("present"), "verbose": False}
    how |= _open(arrays, way)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, tuple(map(torch.from_numpy, arrays.values())), path, **how)
        choices = [given(name, 3), arrays] if way.endswith("open") else [arrays]
        np.savez(path.with_suffix(".npz"), **_accepted(path, choices))
    except Exception as problem:
        path.unlink(missing_ok=True)
        return {"graph": path.stem, "outcome": "not exported", "why": said(problem, path)}
    return {"graph": path.stem, "outcome": "exported"}


def _open(arrays: dict[str, np.ndarray], way: str) -> dict:
    """How an exporter is told which sizes are left open: rows, and the length of a sequence."""
    from torch.export import Dim

    axes = {
        name: (0, 1) if array.ndim == 2 or array.dtype.kind == "i" else (0,)
        for name, array in arrays.items()
    }
    if way == "older_open":
        return {"dynamic_axes": {name: {a: f"size_{a}" for a in axes[name]} for name in axes}}
    if way == "present_open":
        return {"dynamic_shapes": (tuple({a: Dim.AUTO for a in axes[name]} for name in axes),)}
    return {}


def _accepted(path: Path, choices: list[dict]) -> dict[str, np.ndarray]:
    """The first inputs that ONNX Runtime takes, of those that are inputs of the graph."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [feature.name for feature in session.get_inputs()]
    for arrays in choices[:-1]:
        try:
            arrays = {name: arrays[name] for name in names}
            oracle(path, arrays)
            return arrays
        except Exception:
            continue
    return {name: choices[-1][name] for name in names}


def judge_file(graph: str) -> dict:
    """The record of a graph; its inputs lie beside it, or are made."""
    import torch

    torch.set_num_threads(1)
    path = Path(graph)
    beside = path.with_suffix(".npz")
    try:
        given = dict(np.load(beside)) if beside.exists() else some_inputs(path)
    except Exception as problem:
        return {"graph": path.stem, "outcome": "no oracle", "why": said(problem, path)}
    return {"graph": path.stem} | judge(path, given)


class Worker:
    """A process that does one thing after another; one that takes too long is ended."""

    def __init__(self):
        self._process = None

    def ask(self, do, *arguments) -> dict | None:
        """What `do` gives; None where it took too long or the process died."""
        if self._process is None or not self._process.is_alive():
            context = get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send((do, arguments))
        try:
            if self._pipe.poll(LIMIT):
                return self._pipe.recv()
        except EOFError:
            pass
        self._process.kill()
        self._process.join()
        return None


def _serve(pipe) -> None:
    while True:
        try:
            do, arguments = pipe.recv()
        except EOFError:  # all is done
            return
        try:
            pipe.send(do(*arguments))
        except Exception:
            pipe.send({"outcome": "crash", "why": traceback.format_exc()[-400:]})


def run(todo: list[tuple], file: Path, due: set[str]) -> list[dict]:
    """A record for each of (graph's name, what to do, with what).

    file: the records of what was done before, to which more are added. due: outcomes; what has one
    of them is done again. What was not done yet has the outcome "new", and is left out if not due.
    """
    done = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        done[json.loads(line)["graph"]] = json.loads(line)
    worker = Worker()
    for name, *task in todo:
        if done.get(name, {"outcome": "new"})["outcome"] not in due:
            continue
        record = worker.ask(*task)
        why = f"more than {LIMIT} s, or the process died"
        record = {"graph": name} | (record or {"outcome": "no end", "why": why})
        done[name] = record
        with file.open("a") as stream:
            stream.write(json.dumps(record) + "\n")
        print(name, record["outcome"], record.get("why", ""), file=sys.stderr, flush=True)
    return [done[name] for name, *_ in todo if name in done]


def summary(records: list[dict]) -> dict:
    """Counts by outcome, and every graph that is not right in both precisions, with why."""
    seconds = [r[p]["seconds"] for r in records for p in TOLERANCE if p in r]
    others = sorted({r["outcome"] for r in records} - {"right"})
    return {
        "graphs": len(records),
        "outcomes": dict(sorted(Counter(r["outcome"] for r in records).items())),
        "seconds to convert, median": round(float(np.median(seconds)), 2) if seconds else None,
        "seconds to convert, most": max(seconds, default=None),
        **{
            outcome: {r["graph"]: r["why"] for r in records if r["outcome"] == outcome}
            for outcome in others
        },
    }


def exported(folder: Path, names: list[str], due: set[str], ways=WAYS) -> tuple[list, dict]:
    """The graphs of the architectures, and why others could not be made."""
    todo = [(f"{n}-{way}", export, n, way, str(folder)) for way in ways for n in names]
    records = run(todo, folder / "exported.jsonl", due)
    made = [folder / f"{r['graph']}.onnx" for r in records if r["outcome"] == "exported"]
    return made, {r["graph"]: r["why"] for r in records if r["outcome"] != "exported"}


def of_others(folder: Path, found: Path, due: set[str]) -> dict:
    """What came of graphs of other origin, and where they are from."""
    sources = json.loads((found / "sources.json").read_text())
    todo = [(Path(name).stem, judge_file, str(found / name)) for name in sorted(sources)]
    records = run(todo, folder / "others.jsonl", due)
    by_repository = defaultdict(lambda: {"paths": []})
    for record in records:
        source = sources[f"{record['graph']}.onnx"]
        by_repository[source["repo"]]["commit"] = source["commit"]
        by_repository[source["repo"]]["paths"].append(source["path"])
    return summary(records) | {"sources": by_repository}


def headline(found: dict) -> str:
    """What README says of it; a test holds it to the record."""
    made = Counter(found["exported"]["outcomes"])
    return (
        f"of {made.total() - made['no oracle']} graphs of {found['architectures']} architectures "
        f"of transformers, {made['right']} are right in both precisions, "
        f"{made['fp16']} as far as half precision allows, and {made['refused']} is refused"
    )


def main() -> int:
    from architectures import ARCHITECTURES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/field"))
    parser.add_argument("--graphs", type=Path, help="a folder with graphs of other origin")
    parser.add_argument("--ways", nargs="*", default=WAYS, help="of exporting: " + ", ".join(WAYS))
    parser.add_argument("--only", nargs="*", help="architectures, instead of all")
    parser.add_argument("--due", nargs="*", default=["new"], help="outcomes of what is to be done")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    due, names = set(asked.due), asked.only or list(ARCHITECTURES)
    paths, failed = exported(asked.folder, names, due, asked.ways)
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    result |= {
        "date": date.today().isoformat(),
        "machine": {"processor": platform.machine(), "system": platform.system(), "threads": 1},
        "versions": {n: metadata.version(n) for n in VERSIONS},
        "tolerance": TOLERANCE,
        "not exported": failed,
    }
    todo = [(path.stem, judge_file, str(path)) for path in paths]
    records = run(todo, asked.folder / "judged.jsonl", due)
    parts = [record["graph"].rsplit("-", 1) for record in records]
    result["architectures"] = len({name for name, _ in parts})
    result["exported"] = {"ways": Counter(way for _, way in parts)} | summary(records)
    if asked.graphs:
        result["others"] = of_others(asked.folder, asked.graphs, due)
    if asked.only is None:
        RESULT.write_text(lines(result, depth=4) + "\n")
    print(json.dumps({k: result[k]["outcomes"] for k in ("exported", "others") if k in result}))
    return 0


VERSIONS = ("coremltools", "onnx", "onnxruntime", "torch", "transformers")

if __name__ == "__main__":
    sys.exit(main())
