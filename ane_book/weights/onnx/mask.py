"""The mask that a graph adds to the scores of attention: whether it is the causal one.

Each exporter computes it in a way of its own, of the sizes of the inputs. So it is told by what it
is for a few tokens: of a text from its beginning, and of one token after others.
"""

from ane_book.errors import UnsupportedModel
from ane_book.weights.onnx.evaluate import NotComputed, evaluate
from ane_book.weights.onnx.file import Graph, describe
import numpy as np

__all__ = ["check_mask"]

#: Operators that make a mask; none that loops, draws or learns.
OPERATORS = {
    "Add", "And", "Cast", "Concat", "Constant", "ConstantOfShape", "CumSum", "Div", "Equal",
    "Expand", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max",
    "Min", "Mul", "Neg", "Not", "Or", "Range", "ReduceSum", "Reshape", "Shape", "Size", "Slice",
    "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
}  # fmt: skip
MOST = 1 << 13  # numbers of a mask for a few tokens, one for each head
HIDDEN = -1e4  # at most so much is added to the score of a token that is not seen


def check_mask(graph: Graph, name: str) -> None:
    """Raise UnsupportedModel unless each token sees itself and all before it, and none after."""
    for tokens, past in ((4, 0), (1, 4)):
        found = _mask(graph, name, tokens, past)
        seen = np.tril(np.ones((tokens, past + tokens), bool), past)
        fits = found.shape[-2:] == seen.shape
        if not fits or (found[..., seen] != 0).any() or not (found[..., ~seen] <= HIDDEN).all():
            raise UnsupportedModel(
                f"{graph.path}: attention's mask {name} is not the causal one, for {tokens} tokens "
                f"after {past}; each has to see itself and all before it, and none after"
            )


def _mask(graph: Graph, name: str, tokens: int, past: int) -> np.ndarray:
    """What the graph computes under a name, for so many tokens after so many."""
    opset = next((o.version for o in graph.model.opset_import if not o.domain), 1)
    values = {n: _input(n, len(shape), tokens, past) for n, shape in graph.inputs.items()}
    values |= {
        n: s.array() for n, s in graph.stored.items() if np.prod(s.shape, dtype=float) <= MOST
    }
    for node in _makers(graph, name):
        where = f"{graph.path}: attention's mask {name}: {describe(node)}"
        given = {i: values[i] for i in node.input if i in values}
        if node.domain or node.op_type not in OPERATORS or len(given) < len(set(node.input) - {""}):
            raise UnsupportedModel(f"{where}: no part of a mask of the inputs' sizes")
        try:
            results = evaluate(node, given, opset)
        except NotComputed as error:
            raise UnsupportedModel(f"{where}: {error}") from None
        if any(array.size > MOST for array in results):
            raise UnsupportedModel(f"{where}: more numbers than a mask of {tokens} tokens has")
        values |= zip((n for n in node.output if n), results, strict=True)
    if name not in values:
        raise UnsupportedModel(f"{graph.path}: nothing computes attention's mask {name}")
    return values[name]


def _input(name: str, rank: int, tokens: int, past: int) -> np.ndarray:
    """An input of a decoder: the mask of padding, places, a cache, or the tokens themselves."""
    if name == "attention_mask":
        return np.ones((1, past + tokens), np.int64)
    if name == "position_ids":
        return np.arange(past, past + tokens)[None]
    if rank == 4:
        return np.zeros((1, 1, past, 1), np.float32)
    return np.zeros((1, tokens, 1)[:rank], np.int64)


def _makers(graph: Graph, name: str) -> list:
    """The nodes that a value rests on, in the graph's order."""
    numbers, todo = set(), [name]
    while todo:
        found = graph.producers.get(todo.pop())
        if found is not None and found[0] not in numbers:
            numbers.add(found[0])
            todo.extend(graph.nodes[found[0]].input)
    return [graph.nodes[number] for number in sorted(numbers)]
