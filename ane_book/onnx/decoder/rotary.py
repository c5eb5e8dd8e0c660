"""The rotary embedding, of the tables of cosines and sines that a graph stores.

Exporters store no base and no scaling, but what came of them: cos and sin (P, R/2) of every
position. The angle of a pair at one position gives its frequency; those at positions twice as far,
four times as far and so on give more digits of it. Either the frequencies are theta^(-2i/R) for
some theta, or they are written as LongRoPE's, whose divisors may be any.

Letters: P positions, R rotated dimensions of a head.
"""

from dataclasses import dataclass
import math

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.onnx.file import OnnxGraph, StoredTensor, describe
from ane_book.rope import Rotary
import numpy as np

__all__ = ["Tables", "check_tables", "rope_fields", "tables_of"]

#: How far a table may be off, by its type: half a unit of its last place, and a little.
ERRORS = {"FLOAT": 1e-6, "FLOAT16": 1e-3, "BFLOAT16": 8e-3}
TURNS = 4e-7  # and by the position: angles are products of float32


@dataclass(frozen=True)
class Tables:
    """cos and sin (P, R/2): of short contexts and, where another is used for them, of long ones."""

    short: tuple[StoredTensor, StoredTensor]
    long: tuple[StoredTensor, StoredTensor] | None = None
    original: int = 0  # tokens of the longest of the short contexts, where there are long ones

    def check(self) -> None:
        """Raise InvalidWeights unless they are tables of one size."""
        for cos, sin in filter(None, (self.short, self.long)):
            if len(cos.shape) != 2 or cos.shape != sin.shape or min(cos.shape) < 1:
                raise InvalidWeights(
                    f"{cos.graph.path}: tables of cosines {cos.name} {list(cos.shape)} and sines "
                    f"{sin.name} {list(sin.shape)}"
                )
        if self.long and self.long[0].shape[1] != self.short[0].shape[1]:
            raise InvalidWeights(f"{self.short[0].graph.path}: tables of two widths")

    @property
    def positions(self) -> int:
        """P, of the longer ones."""
        return (self.long or self.short)[0].shape[0]

    @property
    def rotated(self) -> int:
        """R."""
        return 2 * self.short[0].shape[1]


def tables_of(graph: OnnxGraph, names: tuple[str, str]) -> Tables:
    """The tables that these values are: stored, or chosen by an `If` on the length of the text."""
    stored = tuple(graph.constant(name) for name in names)
    if None not in stored:
        found = Tables(stored)
    else:
        node = graph.producer(names[0])
        if node is None or node.op_type != "If" or graph.producer(names[1]) is not node:
            raise UnsupportedModel(
                f"{graph.path}: the rotary embedding's cosines {names[0]} and sines {names[1]} "
                "are not stored"
            )
        places = [list(node.output).index(name) for name in names]
        found = Tables(*_branches(graph, node, places), _longest(graph, node))
    found.check()
    return found


def _branches(graph: OnnxGraph, node, places: list[int]) -> list[tuple[StoredTensor, StoredTensor]]:
    """The tables of short texts, `else_branch`, and of long ones, `then_branch`."""
    found = {}
    for item in node.attribute:
        if not item.HasField("g"):
            continue
        inside = {tensor.name: StoredTensor(graph, tensor) for tensor in item.g.initializer}
        for maker in item.g.node:
            constant = graph.constant_of(maker) if maker.op_type == "Constant" else None
            if constant is not None:
                inside[maker.output[0]] = constant
        names = [output.name for output in item.g.output]
        tables = tuple(inside.get(names[place]) for place in places if place < len(names))
        if len(tables) == 2 and None not in tables:
            found[item.name] = tables
    if set(found) != {"else_branch", "then_branch"}:
        raise UnsupportedModel(f"{graph.path}: {describe(node)}: not two pairs of stored tables")
    return [found["else_branch"], found["then_branch"]]


def _longest(graph: OnnxGraph, node) -> int:
    """What the condition `length > original` of an `If` compares with."""
    condition = graph.producer(node.input[0])
    if condition is not None and condition.op_type == "Greater":
        bound = graph.constant(condition.input[1])
        if bound is not None and bound.kind in ("INT64", "INT32") and bound.array().size == 1:
            return int(bound.array().reshape(-1)[0])
    raise UnsupportedModel(
        f"{graph.path}: {describe(node)}: its condition is not length > constant"
    )


def rope_fields(tables: Tables, head_dim: int, max_position: int) -> dict:
    """`rope_theta`, `rope_scaling` and what goes with them, as a `config.json` has them."""
    R = tables.rotated
    fields = {} if head_dim == R else {"partial_rotary_factor": R / head_dim}
    short, size = _frequencies(*tables.short)
    long = _frequencies(*tables.long)[0] if tables.long else short
    if not tables.long and abs(size - 1) < ERRORS[tables.short[0].kind]:
        for theta in _bases(short):
            plain = Rotary(R, R, theta, {}, max_position)
            if _is(plain, tables.short, max_position):
                return fields | {"rope_theta": theta, "rope_scaling": None}
    theta = 10_000.0
    plain = theta ** (-np.arange(0, R, 2) / R)
    scaling = {
        "rope_type": "longrope",
        "short_factor": (plain / short).tolist(),
        "long_factor": (plain / long).tolist(),
        "attention_factor": size,
    }
    original = tables.original or max_position
    return fields | {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "original_max_position_embeddings": original,
    }


def _bases(frequencies: np.ndarray) -> list[float]:
    """What theta may be, the plainest number first."""
    if len(frequencies) < 2 or not 0 < frequencies[-1] < 1:
        return [10_000.0]
    R = 2 * len(frequencies)
    theta = float(frequencies[-1] ** (-R / (R - 2)))
    if not math.isfinite(theta):
        return []
    return list(dict.fromkeys([*(float(f"{theta:.{digits}g}") for digits in range(1, 8)), theta]))


def _frequencies(cos: StoredTensor, sin: StoredTensor) -> tuple[np.ndarray, float]:
    """The radians (R/2,) by which each pair turns a position, and the size of cos and sin."""
    P = cos.shape[0]
    size = float(np.hypot(cos.numbers()[0], sin.numbers()[0]).astype(np.float64).mean())
    if P < 2 or not 0 < size < 1e3:
        raise InvalidWeights(f"{cos.graph.path}: table {cos.name} is no table of cosines")
    found = None
    for position in (1 << n for n in range((P - 1).bit_length())):
        if position >= P:
            break
        rows = (table.numbers()[position].astype(np.float64) for table in (cos, sin))
        angle = np.arctan2(*reversed(list(rows)))
        if found is not None:
            angle += 2 * np.pi * np.round((position * found - angle) / (2 * np.pi))
        found = angle / position
    if not (found > 0).all():
        raise InvalidWeights(f"{cos.graph.path}: table {cos.name} is no table of cosines")
    return found, size


def check_tables(tables: Tables, rotary: Rotary) -> None:
    """Raise InvalidWeights unless these are the tables of a configuration."""
    stored = [(tables.short, tables.original or rotary.max_position)]
    if tables.long:
        stored.append((tables.long, rotary.max_position))
    for pair, context in stored:
        if tables.rotated != rotary.rotary_dim or not _is(rotary, pair, context):
            cos = pair[0]
            raise InvalidWeights(
                f"{cos.graph.path}: the table {cos.name} of the rotary embedding is not that of "
                f"the configuration (theta {rotary.theta:g}, {rotary.rotary_dim} dimensions, "
                f"scaling {rotary.kind})"
            )


def _is(rotary: Rotary, pair: tuple[StoredTensor, StoredTensor], context: int) -> bool:
    """Whether these are the tables of a rotary embedding, at the first positions, the last, and
    some between."""
    P = pair[0].shape[0]
    positions = np.unique(np.geomspace(1, P, 64).astype(np.int64) - 1)
    scale = math.sqrt(rotary.attention_scale or rotary.head_dim**-0.5)
    R = rotary.rotary_dim
    cos, sin = rotary.tables(positions, context)
    ours = cos[0, 0, :, : R // 2] / scale, sin[0, 0, :, R // 2 : R] / scale
    bound = ERRORS[pair[0].kind] * 2 + TURNS * positions[:, None]
    return all(
        table.shape[1] == R // 2 and (np.abs(table.numbers()[positions] - mine) <= bound).all()
        for table, mine in zip(pair, ours, strict=True)
    )
