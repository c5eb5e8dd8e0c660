"""Infer the rotary embedding from the tables of cosines and sines that a graph stores.

Exporters do not store the base and the scaling but their result: cos and sin (P, R/2) for every
position. The angle of a pair at position 1 gives its frequency; the angles at positions 2, 4, 8 and
so on give more digits. If the frequencies are not theta^(-2i/R) for some theta, they are expressed
as LongRoPE's, whose divisors are arbitrary.

Letters: P positions, R rotated dimensions of a head.
"""

from dataclasses import dataclass
import math
from typing import TypeAlias

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.rope import Rotary
from mlprogram.onnx.file import OnnxGraph, StoredTensor, constants_of
import numpy as np

#: Tolerance of a table by its type: a little more than half a unit in the last place.
ERRORS = {"FLOAT": 1e-6, "FLOAT16": 1e-3, "BFLOAT16": 8e-3}
TURNS = 4e-7  # and by the position: angles are products of float32


Table: TypeAlias = tuple[StoredTensor, StoredTensor]  # cos and sin, each (P, R/2)


@dataclass(frozen=True)
class Tables:
    """The tables for short contexts and for long ones, which may be the same."""

    short: Table
    long: Table
    original: int = 0  # the longest short context in tokens, if the two differ

    def __post_init__(self):
        """Raise InvalidWeights unless each cos and sin share a shape, and all tables a width."""
        for cos, sin in (self.short, self.long):
            if len(cos.shape) != 2 or cos.shape != sin.shape or min(cos.shape) < 1:
                raise InvalidWeights(
                    f"{cos.graph.path}: tables of cosines {cos.name} {list(cos.shape)} and sines "
                    f"{sin.name} {list(sin.shape)}"
                )
        if self.long[0].shape[1] != self.short[0].shape[1]:
            raise InvalidWeights(f"{self.short[0].graph.path}: tables of two widths")

    @property
    def rotated(self) -> int:
        """R: rotated dimensions of a head."""
        return 2 * self.short[0].shape[1]


def tables_of(graph: OnnxGraph, names: tuple[str, str]) -> Tables:
    """The tables with these names, which are stored, or chosen by an `If` on the text's length.

    Its condition is `length > original`: `else_branch` has the tables for short texts,
    `then_branch` those for long ones.
    """
    cos, sin = (graph.constants.get(name) for name in names)
    if cos is not None and sin is not None:
        return Tables((cos, sin), (cos, sin))
    node = graph.producer(names[0])
    if node is None or node.op_type != "If" or graph.producer(names[1]) is not node:
        raise UnsupportedModel(
            f"{graph.path}: the rotary embedding's cosines {names[0]} and sines {names[1]} "
            "are not stored"
        )
    pairs: dict[str, Table] = {}
    places = [list(node.output).index(name) for name in names]
    for item in node.attribute:
        inside = {name: StoredTensor(graph, t) for name, t in constants_of(item.g).items()}
        results = [inside.get(output.name) for output in item.g.output]
        cos, sin = (results[place] if place < len(results) else None for place in places)
        if cos is not None and sin is not None:
            pairs[item.name] = cos, sin
    if set(pairs) != {"else_branch", "then_branch"}:
        raise UnsupportedModel(f"{graph.where(node)}: not two pairs of stored tables")
    condition = graph.producer(node.input[0])
    bound = condition and condition.op_type == "Greater" and graph.constants.get(condition.input[1])
    if not bound or bound.kind not in ("INT64", "INT32") or bound.array().size != 1:
        raise UnsupportedModel(f"{graph.where(node)}: its condition is not length > constant")
    original = int(bound.array().reshape(-1)[0])
    return Tables(pairs["else_branch"], pairs["then_branch"], original)


def rope_fields(tables: Tables, head_dim: int, max_position: int) -> dict:
    """The fields of a `config.json` that describe these tables: `rope_theta`, `rope_scaling`..."""
    R = tables.rotated
    fields = {} if head_dim == R else {"partial_rotary_factor": R / head_dim}
    short, size = _frequencies(*tables.short)
    long, _ = _frequencies(*tables.long)
    if tables.long == tables.short and abs(size - 1) < ERRORS[tables.short[0].kind]:
        for theta in _bases(short):
            plain = Rotary(R, R, theta, {}, max_position)
            if _is(plain, tables.short, max_position):
                return fields | {"rope_theta": theta, "rope_scaling": None}
    theta = 10_000.0
    unscaled = theta ** (-np.arange(0, R, 2) / R)
    scaling = {
        "rope_type": "longrope",
        "short_factor": (unscaled / short).tolist(),
        "long_factor": (unscaled / long).tolist(),
        "attention_factor": size,
    }
    return fields | {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "original_max_position_embeddings": tables.original or max_position,
    }


def _bases(frequencies: np.ndarray) -> list[float]:
    """Candidates for theta, the roundest number first."""
    if len(frequencies) < 2 or not 0 < frequencies[-1] < 1:
        return [10_000.0]
    R = 2 * len(frequencies)
    theta = float(frequencies[-1] ** (-R / (R - 2)))
    rounded = [float(f"{theta:.{digits}g}") for digits in range(1, 8)]
    return [*rounded, theta] if math.isfinite(theta) else []


def _frequencies(cos: StoredTensor, sin: StoredTensor) -> tuple[np.ndarray, float]:
    """Each pair's frequency (R/2,), in radians per position, and the amplitude of the tables."""
    P = cos.shape[0]
    size = float(np.hypot(cos.numbers()[0], sin.numbers()[0]).astype(np.float64).mean())
    if P < 2 or not 0 < size < 1e3:
        raise InvalidWeights(f"{cos.graph.path}: table {cos.name} is no table of cosines")
    frequencies, position = np.zeros(cos.shape[1]), 1
    while position < P:
        x, y = (table.numbers()[position].astype(np.float64) for table in (cos, sin))
        angle = np.arctan2(y, x)
        if position > 1:  # add the whole turns that the frequencies so far predict
            angle += 2 * np.pi * np.round((position * frequencies - angle) / (2 * np.pi))
        frequencies, position = angle / position, 2 * position
    if not (frequencies > 0).all():
        raise InvalidWeights(f"{cos.graph.path}: table {cos.name} is no table of cosines")
    return frequencies, size


def check_tables(tables: Tables, rotary: Rotary) -> None:
    """Raise InvalidWeights unless `rotary` computes these tables."""
    longest = rotary.max_position
    for pair, context in ((tables.short, tables.original or longest), (tables.long, longest)):
        if tables.rotated != rotary.rotary_dim or not _is(rotary, pair, context):
            cos = pair[0]
            raise InvalidWeights(
                f"{cos.graph.path}: the table {cos.name} of the rotary embedding is not that of "
                f"the configuration (theta {rotary.theta:g}, {rotary.rotary_dim} dimensions, "
                f"scaling {rotary.kind})"
            )


def _is(rotary: Rotary, pair: Table, context: int) -> bool:
    """Whether `rotary` computes these tables at the first positions, the last, and some between."""
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
