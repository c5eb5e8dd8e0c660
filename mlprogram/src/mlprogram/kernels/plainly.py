"""Run a matched group op by op: the fallback for run-time sizes that its kernel does not take."""

from collections.abc import Callable, Sequence

from mlprogram.kernels.graph import Match
from mlprogram.ops import OPS
from mlprogram.package.function import Operation
from torch import Tensor


def plainly(match: Match, operands: Sequence[str]) -> Callable[..., Tensor]:
    """The ops of a match as a function of the operands of its kernel."""
    calls = [_call(match, operation) for operation in match.operations]

    def run(*given: Tensor) -> Tensor:
        values = dict(zip(operands, given, strict=True))
        for call in calls:
            values |= call(values)
        return values[match.result]

    return run


def _call(match: Match, operation: Operation) -> Callable[[dict], dict]:
    """A function that computes the results of an op, by name, from a dict of values."""
    op, constants = OPS[operation.type], match.graph.constants
    known: dict[str, object] = {}
    for key, items in operation.inputs.items():
        found = [value for item in items if (value := constants.find(item)) is not None]
        if len(found) == len(items):
            values = [
                constants.plain(key, value) if key in op.static else constants.operand(value)
                for value in found
            ]
            known[key] = values if len(values) > 1 or key == "values" else values[0]
    if op.wants_types:
        known["_out"] = [(constants.dtype(type_), type_.shape) for _, type_ in operation.outputs]
    names = [name for name, _ in operation.outputs]

    def call(values: dict) -> dict:
        given = dict(known)
        for key, items in operation.inputs.items():
            if key not in known:
                read = [
                    values[item] if item in values else constants.tensor(constants.known(item))
                    for item in items
                ]
                read = [x.tolist() for x in read] if key in op.static else read
                given[key] = read if len(read) > 1 or key == "values" else read[0]
        results = op.function(**given)
        several = results if isinstance(results, tuple | list) else [results]
        return dict(zip(names, several, strict=True))

    return call
