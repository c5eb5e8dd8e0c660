"""Check that the mask which a graph adds to attention's scores is the causal one.

ONNX Runtime GenAI, for fp16 on a CPU, computes it from the input sizes by some 70 nodes. They are
not matched but evaluated: for a prompt, and for single tokens after a cache, up to the longest text
that the graph has positions for.
"""

from typing import TYPE_CHECKING

from ane_book.errors import UnsupportedModel
from mlprogram.onnx.evaluate import NotComputed, evaluate
from mlprogram.onnx.file import OnnxGraph, describe, opset_of, subgraphs
import numpy as np

if TYPE_CHECKING:  # onnx is an extra
    from onnx import NodeProto


MOST = 1 << 24  # the most elements of an intermediate result
WHOLE = 512  # the longest prompt for which the whole mask is checked
HIDDEN = -1e4  # the score of a token that is not seen gets this added, or less


def check_mask(graph: OnnxGraph, name: str, longest: int) -> None:
    """Raise UnsupportedModel unless each token sees itself and all before it by the mask `name`.

    longest: the tokens that the graph has positions for.
    """
    for tokens, past in ((4, 0), (1, 4), (min(longest, WHOLE), 0), (1, longest - 1)):
        causal = np.arange(past + tokens) <= past + np.arange(tokens)[:, None]
        if not np.array_equal(_seen(graph, name, tokens, past), causal):
            raise UnsupportedModel(
                f"{graph.path}: attention's mask {name} is not the causal one, for {tokens} tokens "
                f"after {past}; each has to see itself and all before it, and none after"
            )


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
        if node.domain or any(subgraphs(node)) or missing:
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
