"""Read published estimates and choices of Core ML's segmenter, and compare predictions with them.

The file is JSON: `ops`, each with its types and its ms by backend, and `graphs`, each with the
indices of its ops in order and the backend chosen for each, a letter per op. There is one,
`research/measurements/segmenter_estimates.json`, which names its source. Beside it, in
`placement_reports.json`, is where others say that Core ML ran their models.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import sha256
import json
from pathlib import Path
import re
from typing import Any

from ane_book_pages import records
from mlprogram.ane.placement.estimator import Estimator, Node, work
from mlprogram.ane.placement.graph import GraphOp
from mlprogram.ane.placement.path import ANE, shortest
from mlprogram.ane.placement.support import support
from mlprogram.package.values import TensorType

LETTERS = {"a": ANE, "b": "bnns", "c": "classic_cpu"}
Types = dict[str, tuple[TensorType, ...]]
Predict = Callable[[Sequence[GraphOp]], Sequence[str]]  # "ANE", "CPU" or "depends" for each op

SERIES = re.compile(r"(_[a-z]*)?\d.*$")
TYPE = re.compile(r"(\w+)\[([\d,?]*)\]")


@dataclass(frozen=True)
class PublishedGraph:
    """estimates: for each op, ms on the backends that take it. selected: the backend it got."""

    name: str
    ops: Sequence[GraphOp]
    estimates: Sequence[Mapping[str, float]]
    selected: Sequence[str]

    @property
    def on_ane(self) -> list[bool]:
        return [backend == ANE for backend in self.selected]

    @property
    def fitted(self) -> bool:
        """Whether the graph is in the half that the estimator is fitted on.

        It goes by a hash of its series. A graph of one op, the same op in its context, and the op
        with other sizes are one series, so they are in the same half.
        """
        return sha256(self.series.encode()).digest()[0] % 2 == 0

    @property
    def series(self) -> str:
        """The last part of the name up to its first number: "sw_conv" of "iso/sw_conv_k1x9"."""
        return SERIES.sub("", self.name.split("/")[-1])


def read_graphs(path: Path | None = None) -> list[PublishedGraph]:
    """The graphs of a file, by default of the one above, in its order."""
    path = path or records.find("measurements/segmenter_estimates.json")
    facts = json.loads(path.read_text())
    ops = [_op(index, entry) for index, entry in enumerate(facts["ops"])]
    return [
        PublishedGraph(
            name,
            [ops[i] for i in graph["ops"]],
            [facts["ops"][i]["ms"] for i in graph["ops"]],
            [LETTERS[letter] for letter in graph["selected"]],
        )
        for name, graph in facts["graphs"].items()
    ]


def read_reports() -> list[dict[str, Any]]:
    """Where somebody says that Core ML ran a model, and what is predicted of the model."""
    return records.read("measurements/placement_reports.json")["reports"]


def refused(graphs: Iterable[PublishedGraph]) -> list[tuple[str, str, int]]:
    """Why the ANE refuses ops of these graphs: claim, the reason of its first op, number of ops.

    The claim with the most ops comes first.
    """
    counts, first = Counter[str](), dict[str, str]()
    for op in {op.name: op for graph in graphs for op in graph.ops}.values():
        found = support(op)
        if found.ane is False:
            counts[found.claim] += 1
            first.setdefault(found.claim, found.reason)
    return [(claim, first[claim], count) for claim, count in counts.most_common()]


def projection(width: int) -> dict[str, float]:
    """A matrix of width x width at one position, which is larger than what was published.

    beyond: its bytes over those of the largest convolution. by_step: ms that an M4's engine saves
    at the lowest rate of convolutions. by_bytes: ms that it saves if memory is the limit.
    """
    m4, moved = Estimator.of("m4"), 2 * width**2  # bytes, and operations
    step = m4.trees["conv"].root
    while isinstance(step, Node):
        step = step.below
    cpu, ane = m4.roofs["bnns"].gibs, m4.roofs["ane"].gibs
    return {
        "beyond": moved / m4.trees["conv"].bytes,
        "by_step": moved * (1 / step.rates["bnns"] - 1 / step.rates["ane"]) / 1e6,
        "by_bytes": 1e3 * moved / 2**30 * (1 / cpu - 1 / ane),
    }


def sums(graphs: Iterable[PublishedGraph]) -> set[tuple]:
    """What an estimate is fitted to: type and work of each op of these graphs."""
    return {(op.type, work(op)) for graph in graphs for op in graph.ops}


def judge(
    graphs: Iterable[PublishedGraph], predict: Predict, learned: Set[tuple] = frozenset()
) -> dict[str, int]:
    """Compare placements that are predicted from types and shapes with the published ones.

    learned: the `sums` of the graphs that were fitted. An op with one of these is not counted, nor
    a graph that has no other. Returns counts of graphs and of ops: all, exact (the same device; for
    a graph, for every op), equal (another one, of the same cost by the published estimates),
    depends (the prediction is open), missed.
    """
    counts = Counter({f"{of} {what}": 0 for of in ("graphs", "ops") for what in WAYS})
    for graph in graphs:
        found = _ways(graph, predict(graph.ops), learned)
        if not found:
            continue
        counts.update(f"ops {way}" for way in found)
        counts[f"graphs {max(found, key=WAYS.index)}"] += 1
        counts["ops all"] += len(found)
        counts["graphs all"] += 1
    return dict(counts)


WAYS = ("all", "exact", "equal", "depends", "missed")  # from good to bad


def _ways(graph: PublishedGraph, devices: Sequence[str], learned: Set[tuple]) -> list[str]:
    """For each op that was not learned, one of WAYS: how the prediction meets the choice."""
    choices = shortest(graph.estimates).choices
    found = []
    for op, device, chosen, equal in zip(graph.ops, devices, graph.on_ane, choices, strict=True):
        if (op.type, work(op)) in learned:
            continue
        if device == "depends":
            found.append("depends")
        elif (device == "ANE") == chosen:
            found.append("exact")
        else:
            found.append("equal" if len({backend == ANE for backend in equal}) > 1 else "missed")
    return found


def _op(index: int, entry: dict) -> GraphOp:
    """An op of the file; its inputs have the names that MIL gives to those of its type."""
    values = [_type(text) for text in entry["in"]]
    names = [
        n for n in ARGUMENTS.get(entry["op"], ("x", "y")) if n not in entry.get("constants", {})
    ]
    inputs: Types = {
        names[i] if i < len(names) else f"x{i}": (type_,) for i, type_ in enumerate(values)
    }
    constants: Types = {name: (_type(text),) for name, text in entry.get("constants", {}).items()}
    return GraphOp(
        entry["op"],
        f"{entry['op']}_{index}",
        inputs,
        tuple(map(_type, entry["out"])),
        constants,
        entry.get("attributes", {}),
    )


#: Names of the inputs of ops where placement asks for one by name, in the order of the source.
ARGUMENTS = {
    "conv": ("x", "weight"),
    "linear": ("x",),
    "gather": ("x", "indices"),
    "matmul": ("x", "y"),
    "slice_by_size": ("x", "begin"),
}


def _type(text: str) -> TensorType:
    found = TYPE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no type such as fp16[1,64]")
    sizes = found[2].split(",") if found[2] else []
    return TensorType(found[1], tuple(None if size == "?" else int(size) for size in sizes))
