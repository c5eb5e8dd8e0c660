"""If, Loop and Scan, whose subgraphs become part of the program: Core ML's graph has one path.

The condition of an If has to be constant, and so has the number of steps of a Loop, or the
condition to go on after each. A step is translated as often as it runs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mlprogram.onnx.file import attribute, subgraphs
from mlprogram.onnx.graph.ops import Unsayable
from mlprogram.onnx.graph.ops._common import first, one_axis
from mlprogram.onnx.graph.values import Value
import numpy as np
from onnx import GraphProto, NodeProto

if TYPE_CHECKING:
    from mlprogram.onnx.graph.translate import GraphWalk


MOST = 1 << 16  # nodes that a loop may be unrolled to

Inputs = Sequence[Value | None]


def branch(walk: "GraphWalk", node: NodeProto, inputs: Inputs) -> list[Value]:
    """The results of an If: those of its one branch that runs."""
    (condition,) = _known(inputs[:1], "control flow: export the model for one path and one length")
    if condition is None or condition.size != 1:
        raise Unsayable(f"a condition of {0 if condition is None else condition.size} values")
    name = "then_branch" if condition.item() else "else_branch"
    graph = next((a.g for a in node.attribute if a.name == name), None)
    if graph is None:
        raise Unsayable(f"an If without its {name}")
    return walk.nested(node, graph, walk.constants(graph))


def loop(walk: "GraphWalk", node: NodeProto, inputs: Inputs) -> list[Value]:
    """The results of a Loop: what its steps hand on, and what they each give, stacked."""
    open_length = "a Loop of a length that is known only when the program runs"
    limit, condition = _known([*inputs, None, None][:2], open_length)
    body, kept = _body(node), [*inputs[2:]]
    goes_on, step, rows = condition is None or bool(condition), 0, list[list[Value]]()
    names, own = [feature.name for feature in body.input], walk.constants(body)
    while goes_on and (limit is None or step < first(limit)):
        _check_size(node, body, step + 1)
        given = [Value.known(np.array(step, np.int64)), Value.known(np.array(True)), *kept]
        again, *made = walk.nested(node, body, own | _named(names, given), f"step {step}")
        kept, step = [*made[: len(kept)]], step + 1
        rows.append(made[len(kept) :])
        if limit is None or step < first(limit):
            (condition,) = _known([again], "a Loop that ends by what it computes")
            goes_on = bool(condition)
    stacked = (_stacked(walk, row, 0) for row in _columns(node, rows, len(kept)))
    return [*filter(None, kept), *stacked]


def scan(walk: "GraphWalk", node: NodeProto, inputs: Inputs) -> list[Value]:
    """The results of a Scan: the same, where each step takes a slice of some inputs."""
    body, count = _body(node), attribute(node, "num_scan_inputs", 0)
    kept, sequences = [*inputs[: len(inputs) - count]], inputs[len(inputs) - count :]
    if not sequences or None in sequences:
        raise Unsayable("a Scan of nothing")
    slices = [*_slices(walk, node, sequences)]
    steps, rows = {len(each) for each in slices}, list[list[Value]]()
    names, own = [feature.name for feature in body.input], walk.constants(body)
    if len(steps) > 1:
        raise Unsayable(f"a Scan over sequences of {' and '.join(map(str, sorted(steps)))}")
    _check_size(node, body, max(steps))
    for step, given in enumerate(zip(*slices, strict=True)):
        taken = _named(names, [*kept, *(each() for each in given)])
        made = walk.nested(node, body, own | taken, f"step {step}")
        kept = [*made[: len(kept)]]
        rows.append(made[len(kept) :])
    columns = _columns(node, rows, len(kept))
    axes = attribute(node, "scan_output_axes", [0] * len(columns))
    backward = attribute(node, "scan_output_directions", [0] * len(columns))
    stacked = (
        _stacked(walk, column[::-1] if back else column, axis)
        for column, axis, back in zip(columns, axes, backward, strict=True)
    )
    return [*filter(None, kept), *stacked]


CONTROL: dict[str, Callable] = {"If": branch, "Loop": loop, "Scan": scan}


def _known(values: Sequence[Value | None], otherwise: str) -> list[np.ndarray | None]:
    """The constants among values that have to be; raises Unsayable with `otherwise`."""
    for value in values:
        if value is not None and not value.is_known:
            origins = sorted(value.origins)
            known = f", or make {', '.join(origins)} known (constants=)" if origins else ""
            raise Unsayable(otherwise + known, origins)
    return [None if value is None else np.asarray(value.data) for value in values]


def _body(node: NodeProto) -> GraphProto:
    body = next(subgraphs(node), None)
    if body is None:
        raise Unsayable(f"a {node.op_type} without its body")
    return body


def _check_size(node: NodeProto, body: GraphProto, steps: int) -> None:
    if steps * max(1, len(body.node)) > MOST:
        raise Unsayable(
            f"a {node.op_type} of {steps:,} steps or more, of {len(body.node):,} nodes each: they "
            f"are unrolled, to {MOST:,} nodes at most"
        )


def _named(names: list[str], values: Inputs) -> dict[str, Value]:
    if len(names) != len(values):
        raise Unsayable(f"a body of {len(names)} inputs, where {len(values)} are given")
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _slices(
    walk: "GraphWalk", node: NodeProto, sequences: Inputs
) -> Iterator[list[Callable[[], Value]]]:
    """For each sequence what makes its slices, in the order of the steps."""
    axes = attribute(node, "scan_input_axes", [0] * len(sequences))
    backward = attribute(node, "scan_input_directions", [0] * len(sequences))
    for x, axis, back in zip(sequences, axes, backward, strict=True):
        assert x is not None  # as `scan` has found
        axis = one_axis(axis, len(x.shape))
        places = range(x.shape[axis])[:: -1 if back else 1]
        yield [partial(_slice, walk, x, axis, at) for at in places]


def _slice(walk: "GraphWalk", x: Value, axis: int, at: int) -> Value:
    return walk.apply("Gather", x, Value.known(np.array(at, np.int64)), axis=axis)


def _columns(node: NodeProto, rows: list[list[Value]], kept: int) -> list[list[Value]]:
    """What the steps give, by output. Raises Unsayable where none of them runs."""
    if not rows and len(node.output) > kept:
        raise Unsayable(f"a {node.op_type} of no steps, which gives tensors of no elements")
    return [list(column) for column in zip(*rows, strict=True)]


def _stacked(walk: "GraphWalk", values: list[Value], axis: int) -> Value:
    axis = one_axis(axis, len(values[0].shape) + 1)
    new = Value.known(np.array([axis], np.int64))
    return walk.apply("Concat", *(walk.apply("Unsqueeze", x, new) for x in values), axis=axis)
