"""Check that a converted package computes what its ONNX graph computes.

    for verdict in check_graph(graph, package):
        print(verdict)  # in fp16: agrees with ONNX Runtime to 0.04 % of the largest value ...

The reference is ONNX Runtime on the graph itself, in the graph's own precision; the executor runs
the package. A package in half precision gets two verdicts: its run in single precision shows
whether the conversion is right, the one in half precision what ships. The error of a real output is
its largest difference relative to its largest magnitude (`mlprogram.compare`), that of an integer
output the share of the numbers that differ.

Taught in the appendix "GGUF and ONNX".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from mlprogram import MLProgram
from mlprogram.compare import diff, percent
from mlprogram.compare.numerics import report
from mlprogram.errors import InvalidInput
from mlprogram.onnx.check.inputs import given_inputs, random_inputs
from mlprogram.onnx.graph.source import GraphSource
from mlprogram.onnx.runtime import open_session
import numpy as np
from onnx import GraphProto, TensorProto

__all__ = ["Verdict", "check_graph"]

#: The largest allowed error by the precision of the package and of the run. In single precision
#: only the order of sums differs: 1e-7 a step. fp16 rounds by up to 2^-11, 0.05 %: the limit is 20
#: such roundings in one direction if only the weights are rounded, and 100 if every step is. A
#: graph that itself rounds to fp16 or to bytes gets the same limits. A wrong conversion is off by a
#: good part of the output's range.
ALLOWED = {("fp32", "fp32"): 0.001, ("fp16", "fp32"): 0.01, ("fp16", "fp16"): 0.05}


@dataclass(frozen=True)
class Verdict:
    """The result of one run of a package.

    precision: of the run; "" if there was none. agrees: with ONNX Runtime; None if it did not run.
    text: one line that says what was compared, and the result.
    """

    precision: str
    agrees: bool | None
    text: str

    def __str__(self) -> str:
        return f"in {self.precision}: {self.text}" if self.precision else self.text


def check_graph(
    graph: str | Path,
    package: str | Path,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> list[Verdict]:
    """Run the graph with ONNX Runtime and its package with the executor, and compare the outputs.

    inputs: arrays by the graph's names; random ones of sensible ranges if None. If ONNX Runtime is
    not installed or does not run the graph, the verdict is whether all outputs are finite. A
    failure becomes a verdict: nothing is raised.
    """
    verdicts = []
    try:
        for verdict in _verdicts(Path(graph), Path(package), inputs, seed):
            verdicts.append(verdict)
    except Exception as error:  # of ONNX Runtime, of a damaged file, of memory: no kind is left out
        verdicts.append(Verdict("", None, f"not made: {_first_line(error)}"))
    return verdicts


def _verdicts(
    graph: Path, package: Path, inputs: Mapping[str, np.ndarray] | None, seed: int
) -> Iterator[Verdict]:
    program, source = MLProgram(package), GraphSource(graph)  # in fp16, which is as declared
    if inputs is None:
        arrays, on = random_inputs(source.graph, program, seed), f"random inputs, seed {seed}"
    else:
        arrays, on = given_inputs(source.graph, program, inputs), "the given inputs"
    theirs, why = _reference(graph, arrays)
    names = [feature.name for feature in source.graph.output]
    made = {value.dtype for op in program.operations for _, value in op.outputs}
    stored = "fp16" if "fp16" in made else "fp32"
    for precision in dict.fromkeys(("fp32", stored)):
        run = program if precision == "fp16" else MLProgram(package, precision=precision)
        values = dict(zip(run.inputs, arrays.values(), strict=True))
        results = run.predict(values)
        assert isinstance(results, dict)  # of one set of inputs; a list is of several
        ours = dict(zip(dict.fromkeys(names), results.values(), strict=True))
        if theirs is None:
            agrees, text = None, f"{_finite(ours)} on {on}; not compared: {why}"
        else:
            rounded = _is_coarse(source.graph)
            allowed = ALLOWED["fp16", "fp16"] if rounded else ALLOWED[stored, precision]
            wanted = {name: np.asarray(a) for name, a in zip(names, theirs, strict=True)}
            agrees, text = _compared(ours, wanted, allowed)
            text = f"{text}, on {on}"
        faults = report(run, values) if precision == "fp16" else ()
        faults = [fault for fault in faults if fault.kind in ("overflow", "nan")]
        yield Verdict(precision, agrees, f"{text}; {faults[0]}" if faults else text)


def _is_coarse(graph: GraphProto) -> bool:
    """Whether the graph itself, and so the reference, rounds to half precision or to bytes."""
    half = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    types = {tensor.data_type for tensor in graph.initializer}
    types |= {feature.type.tensor_type.elem_type for feature in graph.input}
    return bool(half & types) or any("Quantize" in node.op_type for node in graph.node)


def _reference(graph: Path, arrays: dict[str, np.ndarray]) -> tuple[list | None, str]:
    """ONNX Runtime's outputs and "", or None and the reason why there are none."""
    try:
        return open_session(graph).run(None, arrays), ""
    except ImportError:
        return None, "onnxruntime is not installed"
    except Exception as error:  # of kinds of its own, from C++
        return None, f"ONNX Runtime does not run the graph: {_first_line(error)}"


def _compared(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], allowed: float
) -> tuple[bool, str]:
    """Whether all outputs agree, and a sentence that says so or names the output farthest off."""
    errors = {name: _error(array, theirs[name]) for name, array in ours.items()}
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] == inf:
        x, y = ours[worst], theirs[worst]
        fault = f"output {worst!r} has shape {x.shape}, theirs {y.shape}"
        if x.size == y.size:
            one = np.isfinite(x) != np.isfinite(y).reshape(x.shape)
            numbers = f"{one.sum():,} of {one.size:,} numbers"
            fault = f"of output {worst!r}, {numbers} are finite on one side only"
        return False, f"differs from ONNX Runtime: {fault}"
    agrees = errors[worst] <= allowed
    verb = "agrees with ONNX Runtime to" if agrees else "differs from ONNX Runtime by"
    of = "numbers" if theirs[worst].dtype.kind in "iub" else "largest value"
    where = f"output {worst!r}; {percent(allowed)} allowed"
    return agrees, f"{verb} {percent(errors[worst])} of the {of} ({where})"


def _error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The error of an output; for integers and booleans the share of elements that differ."""
    if theirs.dtype.kind in "iub" and ours.size == theirs.size:
        return float((ours.reshape(theirs.shape) != theirs).mean()) if theirs.size else 0.0
    return diff({"y": ours}, {"y": theirs}, {}).outputs[0].error


def _finite(ours: Mapping[str, np.ndarray]) -> str:
    for name, array in ours.items():
        if count := int((~np.isfinite(array)).sum()):
            return f"output {name!r} has {count:,} of {array.size:,} numbers NaN or infinite"
    return "all outputs are finite"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    known = isinstance(error, InvalidInput)
    return lines[0] if lines and known else ": ".join([type(error).__name__, *lines[:1]])
