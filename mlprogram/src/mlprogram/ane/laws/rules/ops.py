"""Rules on ops and dtypes that the engine does not take, or runs slowly."""

from collections.abc import Iterator

from mlprogram.ane import claims
from mlprogram.ane.laws.graph import ProgramGraph, Seen
from mlprogram.ane.laws.rule import Severity
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant

#: Ops that read at positions -> the input with the positions.
INDEXED = {
    "gather": "indices", "gather_along_axis": "indices", "gather_nd": "indices",
    "slice_by_index": "begin", "slice_by_size": "begin", "slice_update": "begin",
    "scatter": "indices", "scatter_along_axis": "indices", "scatter_nd": "indices",
}  # fmt: skip
GATHERS = ("gather", "gather_along_axis", "gather_nd")
ARGS = ("reduce_argmax", "reduce_argmin", "argsort")
RECURRENT = ("lstm", "gru", "rnn")  # they hold the weights of a model

#: Inputs with data; others are indices, lengths or shapes.
DATA = frozenset(["x", "y", "a", "b", "cond", "values", "input", "data", "source_val"])

#: Ops whose integers another rule checks, or none has to: states, control flow.
APART = frozenset(["topk", "shape", "read_state", "write_state", "cond", "while_loop", *ARGS])


def fp32_ops(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        wide = any(type_.dtype == "fp32" for _, type_ in operation.outputs)
        if wide and operation.type != "cast" and graph.computed(operation):
            weighs: Severity | None = None if graph.weight(operation) else "warning"
            yield Seen(f"a {operation.type} in single precision", operation, weighs)


def int32_ops(graph: ProgramGraph, _) -> Iterator[Seen]:
    apart = APART | {*claims.find("ops-refused").names, *GATHERS}
    for operation in graph.operations:
        if operation.type in apart or _index_arithmetic(graph, operation):
            continue
        names = graph.computed(operation)
        into = any(type_.dtype == "int32" for _, type_ in operation.outputs)
        given = {item for key in DATA for item in operation.inputs.get(key, ())}
        of = any(graph.types[name].dtype == "int32" for name in names if name in given)
        if names and (into or of) and not _of_shapes(graph, names):
            yield Seen(f"{operation.type} of int32", operation)


def _of_shapes(graph: ProgramGraph, names: list[str]) -> bool:
    """Whether values are computed from shapes alone, so that they are fixed once those are."""
    todo, seen = [*names], set()
    while todo:
        name = todo.pop()
        maker = graph.maker(name)
        if maker is None or (maker.type != "shape" and not (before := graph.computed(maker))):
            return False
        if name not in seen and maker.type != "shape":
            todo += before
        seen.add(name)
    return True


def _index_arithmetic(graph: ProgramGraph, operation: Operation) -> bool:
    """Whether an op's results are used only as indices of other ops."""
    todo, seen = [name for name, _ in operation.outputs], set()
    found = False
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in graph.outputs or graph.types[name].dtype in ("fp16", "fp32"):
            return False
        for reader in graph.readers.get(name, ()):
            places = [k for k, items in reader.inputs.items() if name in items]
            if reader.type in INDEXED and "x" not in places:
                found = True
            else:
                todo += [made for made, _ in reader.outputs]
    return found


def ops_refused(graph: ProgramGraph, names: tuple[str, ...]) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type in names and graph.computed(operation):
            graver: Severity | None = "error" if operation.type in RECURRENT else None
            yield Seen(operation.type, operation, graver)


def gather_computed(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type in GATHERS:
            indices = graph.item(operation, "indices")
            if not graph.fixed(indices):
                given = "given" if _given(graph, indices) else "computed"
                yield Seen(f"a {operation.type} by {given} indices", operation)


def _given(graph: ProgramGraph, name: str | Constant | None) -> bool:
    """Whether a value is an input of the function, perhaps cast to another type."""
    maker = graph.maker(name)
    return maker is None or (maker.type == "cast" and _given(graph, maker.inputs["x"][0]))


def slice_dynamic(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type in ("slice_by_size", "slice_by_index"):
            keys = [k for k in ("begin", "end", "size") if operation.inputs.get(k)]
            if not all(graph.fixed(graph.item(operation, key)) for key in keys):
                yield Seen(f"a {operation.type} from a computed position", operation)


def argmax_integer(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type in ARGS and operation.outputs[0][1].dtype not in ("fp16", "fp32"):
            yield Seen(f"{operation.type} to {operation.outputs[0][1].dtype}", operation)


def topk(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type == "topk":
            yield Seen(f"topk with k = {graph.value(operation, 'k', 1)}", operation)


def activations(graph: ProgramGraph, names: tuple[str, ...]) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type in names:
            yield Seen(operation.type, operation)


def softplus_large(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type == "softplus" and operation.outputs[0][1].dtype == "fp16":
            yield Seen("softplus", operation)


def fused_attention(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type == "scaled_dot_product_attention":
            yield Seen("scaled_dot_product_attention", operation)


RULES = (
    fp32_ops, int32_ops, ops_refused, gather_computed, slice_dynamic, argmax_integer, topk,
    activations, softplus_large, fused_attention,
)  # fmt: skip
