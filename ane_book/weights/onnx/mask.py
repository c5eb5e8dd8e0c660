"""Recognise the mask that a graph adds to attention's scores: causal, or causal with a window.

Each exporter computes the mask in its own way from the input sizes. So its nodes are not matched
but evaluated: for a prompt, and for single tokens after a cache, up to the longest text that the
graph has positions for. The window is the number of tokens that the last token of that text sees.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ane_book.errors import UnsupportedModel
from mlprogram.onnx.evaluate import NotComputed, evaluate
from mlprogram.onnx.file import OnnxGraph, StoredTensor, describe, opset_of
import numpy as np

if TYPE_CHECKING:  # onnx is an extra
    from onnx import NodeProto

__all__ = ["window_of"]

#: Operators that may occur in the computation of a mask: no loops, no random numbers, no weights.
OPERATORS = {
    "Add", "And", "Cast", "Concat", "Constant", "ConstantOfShape", "CumSum", "Div", "Equal",
    "Expand", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max",
    "Min", "Mul", "Neg", "Not", "Or", "Range", "ReduceSum", "Reshape", "Shape", "Size", "Slice",
    "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
}  # fmt: skip
MOST = 1 << 22  # the most elements of an intermediate result
FEW = 64  # every mask has to be computable for so many tokens
WHOLE = 512  # the longest prompt for which the whole mask is checked
HIDDEN = -1e4  # the score of a token that is not seen gets this added, or less


def window_of(graph: OnnxGraph, name: str, longest: int) -> int | None:
    """The window of the mask `name`: how many tokens a token sees, itself included; None for all.

    longest: the tokens that the graph has positions for. Raises UnsupportedModel if a token sees
    any tokens but itself and the last ones before it.
    """
    length, last = longest, None
    while last is None:
        try:
            last = _seen(graph, name, 1, length - 1)
        except UnsupportedModel:
            if length <= FEW:
                raise
            length //= 2
    # A mask that is cut out of one for all pairs of tokens may be too large to compute for the
    # longest text. Then no integer in its nodes may be a window between the two lengths.
    for number in _numbers(graph, name) if length < longest else ():
        if length - 4 < abs(number) <= longest:
            raise UnsupportedModel(
                f"{graph.path}: attention's mask {name} has the number {number}, which may be a "
                f"window, and can be computed for {length} tokens only"
            )
    window = int(last[0].sum()) if last.size == length else length
    text = min(window + 4, WHOLE)  # some graphs take several tokens at the beginning only
    for tokens, past in ((4, 0), (1, 4), (text, 0), (1, min(window, length - 1)), (1, length - 1)):
        seen, rows = _seen(graph, name, tokens, past), past + np.arange(tokens)[:, None]
        columns = np.arange(past + tokens)
        causal = columns <= rows
        if window < length:
            causal &= columns > rows - window
        if not np.array_equal(seen, causal):
            raise UnsupportedModel(
                f"{graph.path}: attention's mask {name} is not the causal one, for {tokens} tokens "
                f"after {past}; each has to see itself and all before it, or the last ones, and "
                "none after"
            )
    return window if window < length else None


def _numbers(graph: OnnxGraph, name: str) -> Iterator[int]:
    """The integers among the constants and attributes of the nodes that compute a value."""
    for node in _makers(graph, name):
        tensors = [graph.constants[i] for i in node.input if i in graph.constants]
        for item in node.attribute:
            yield from (item.i, *item.ints)
            tensors.append(StoredTensor(graph, item.t))
        for stored in tensors:
            if stored.kind in ("INT64", "INT32"):
                yield from stored.array().reshape(-1).tolist()


def _seen(graph: OnnxGraph, name: str, tokens: int, past: int) -> np.ndarray:
    """Which tokens each token sees, bool (tokens, past + tokens).

    Empty if the heads differ, or if a value of the mask is neither 0 nor at most HIDDEN.
    """
    mask = _computed(graph, name, tokens, past)
    rows = mask.reshape(-1, *mask.shape[-2:])
    seen = rows == 0
    clear = mask.ndim > 1 and (seen == seen[:1]).all() and (seen | (rows <= HIDDEN)).all()
    return seen[0] if clear and len(seen) else np.zeros((0, 0), bool)


def _computed(graph: OnnxGraph, name: str, tokens: int, past: int) -> np.ndarray:
    """Evaluate the value `name` for a call of `tokens` tokens after `past` cached ones."""
    values = {n: _input(n, len(shape), tokens, past) for n, shape in graph.inputs.items()}
    for node in _makers(graph, name):
        for i in node.input:
            stored = graph.constants.get(i) if i not in graph.producers else None
            if stored is not None and np.prod(stored.shape, dtype=float) <= MOST:
                values[i] = stored.array()
        where = f"{graph.path}: attention's mask {name}: {describe(node)}"
        operands = {i: values[i] for i in node.input if i in values}
        missing = set(node.input) - {""} - operands.keys()
        if node.domain or node.op_type not in OPERATORS or missing:
            raise UnsupportedModel(f"{where}: no part of a mask of the inputs' sizes")
        try:
            results = evaluate(node, operands, opset_of(graph.model))
        except NotComputed as error:
            raise UnsupportedModel(f"{where}: {error}") from None
        if any(array.size > MOST for array in results):
            raise UnsupportedModel(
                f"{where}: more numbers than a mask of {tokens} tokens after {past} needs"
            )
        values |= zip((n for n in node.output if n), results, strict=True)
    if name not in values:
        raise UnsupportedModel(f"{graph.path}: nothing computes attention's mask {name}")
    return values[name]


def _input(name: str, rank: int, tokens: int, past: int) -> np.ndarray:
    """An input of a decoder: padding mask, positions, a cache, or the token ids."""
    if name == "attention_mask":
        return np.ones((1, past + tokens), np.int64)
    if name == "position_ids":
        return np.arange(past, past + tokens)[None]
    if rank == 4:
        return np.zeros((1, 1, past, 1), np.float32)
    return np.zeros((1, tokens, 1)[:rank], np.int64)


def _makers(graph: OnnxGraph, name: str) -> "list[NodeProto]":
    """The nodes that a value depends on, in the graph's order."""
    numbers: set[int] = set()
    todo = [name]
    while todo:
        number = graph.producers.get(todo.pop())
        if number is not None and number not in numbers:
            numbers.add(number)
            todo.extend(graph.nodes[number].input)
    return [graph.nodes[number] for number in sorted(numbers)]
