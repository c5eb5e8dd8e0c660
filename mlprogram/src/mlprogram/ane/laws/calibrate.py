"""Find sums that would overflow the engine's accumulator on realistic inputs.

A graph alone does not tell: the same weights are fine on one text and overflow on another, and
random inputs have no outliers. So the package runs in single precision, op by op, on given inputs,
and the result of every sum is checked. Intermediate values of the
accumulator are not, since the order of its additions is not published.
"""

from collections.abc import Callable, Iterator, Mapping

from mlprogram import MLProgram
from mlprogram.ane.laws.graph import Seen
from mlprogram.ane.laws.rule import Severity
from mlprogram.errors import InvalidInput
from mlprogram.package.function import Operation
from mlprogram.package.reader import Package
import numpy as np

#: Ops that sum: products, or their own input.
SUMMING = {"conv", "conv_transpose", "linear", "matmul", "einsum"}
SUMMING |= {"reduce_mean", "reduce_sum", "reduce_sum_square"}
Inputs = Mapping[str, np.ndarray]
HALF = float(np.finfo(np.float16).max)


def sums(program: MLProgram, inputs: Mapping[str, np.ndarray], most: float) -> Iterator[Seen]:
    """The largest sum of a function, if it reaches `most`. program: in single precision."""
    beyond: list[tuple[float, Operation]] = []
    makers = {name: o for o in program.operations if o.type in SUMMING for name, _ in o.outputs}
    shapes: dict[str, int] = {name: array.size for name, array in inputs.items()}
    state = program.make_state() if program.states else None
    for name, value in program.plain().trace(inputs, state):
        shapes[name] = value.size
        operation = makers.get(name)
        if operation is None or not value.size:
            continue
        terms = 1
        if operation.type == "reduce_mean":
            terms = shapes.get(operation.inputs["x"][0], value.size) // value.size
        largest = float(np.abs(value).max()) * terms
        if not largest < most:  # NaN too
            beyond.append((largest, operation))
    if beyond:
        largest, operation = max(beyond, key=lambda each: each[0])
        several = f", and beyond {most:,.0f} in {len(beyond) - 1} more" if len(beyond) > 1 else ""
        severity: Severity | None = None if largest <= HALF else "error"
        yield Seen(f"a sum of {largest:,.0f}{several}", operation, severity)


def given_sums(package: Package, inputs: Inputs, most: float) -> Iterator[tuple[str, Seen]]:
    """Yield (function, what was seen) for every function of a package that takes these inputs.

    Raises InvalidInput if none does.
    """
    found = [n for n, f in package.functions.items() if f.inputs.keys() <= inputs.keys()]
    if not found:
        wanted = {name: ", ".join(f.inputs) for name, f in package.functions.items()}
        raise InvalidInput(
            f"{package.path}: no function takes {', '.join(inputs) or 'nothing'}; "
            + "; ".join(f"{name} takes {names}" for name, names in wanted.items())
        )
    for name in found:
        program = MLProgram(package, name, precision="fp32")
        own = {key: inputs[key] for key in program.inputs}
        yield from ((name, seen) for seen in sums(program, own, most))


def own_sums(
    package: Package, inputs: Callable[[MLProgram], Inputs | None], most: float
) -> Iterator[tuple[str, Seen]]:
    """Yield (function, what was seen) for every function that has inputs of its own."""
    for name in package.functions:
        program = MLProgram(package, name, precision="fp32")
        if (own := inputs(program)) is not None:
            yield from ((name, seen) for seen in sums(program, own, most))
