"""Read published plans of whole networks: what Core ML believed of each op, and where it put it.

A plan (`MLComputePlan`) has the share of each op in the cost of the whole, and no milliseconds. The
milliseconds follow from the ops that have no rate of their own: theirs are bytes over a bandwidth,
which the log of the estimator states (68 GiB/s for the ANE of an M4).

The file is JSON, `research/measurements/network_plans.json`, which names its sources. A network has
its different ops with their shares by chip, and the order in which they stand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import json
from pathlib import Path

from mlprogram.ane.placement.estimator import Roof, work
from mlprogram.ane.placement.graph import GraphOp, bytes_of
from mlprogram.ane.placement.path import ANE
from mlprogram.package.values import TensorType

MOVED = "reshape"  # a type in every network whose time is its bytes over the bandwidth


@dataclass(frozen=True)
class NetworkPlan:
    """The plan of one network on one chip, with the CPU and the ANE allowed.

    shares: the cost of each op, 1 in sum. devices: "ane" or "cpu" for each; an op on the CPU is
    also one that the plan says no ANE supports, in all that were read.
    """

    network: str
    chip: str
    ops: Sequence[GraphOp]
    shares: Sequence[float]
    devices: Sequence[str]

    def milliseconds(self, roof: Roof) -> list[float]:
        """The cost of each op in ms, if the ANE moves bytes at the bandwidth of `roof`."""
        moved = next(i for i, op in enumerate(self.ops) if op.type == MOVED)
        whole = roof.ms(work(self.ops[moved])) / self.shares[moved]
        return [whole * share for share in self.shares]

    @property
    def on_ane(self) -> list[bool]:
        return [device == ANE for device in self.devices]


def read_plans(path: Path) -> list[NetworkPlan]:
    """Every plan of the file, network by network."""
    plans = []
    for name, network in json.loads(path.read_text())["networks"].items():
        made = [_op(index, facts) for index, facts in enumerate(network["ops"])]
        order = network["order"]
        devices = [network["ops"][i].get("device", ANE) for i in order]
        for chip in network["plans"]:
            shares = [network["ops"][i]["shares"][chip] for i in order]
            plans.append(NetworkPlan(name, chip, [made[i] for i in order], shares, devices))
    return plans


def op_facts(op: GraphOp) -> dict:
    """An op as the file has it: its type, the types of its values, and its attributes."""
    written = {"op": op.type, "in": _texts(op.inputs), "out": [*map(_text, op.outputs)]}
    if op.constants:
        written["constants"] = _texts(op.constants)
    if op.attributes:
        written["attributes"] = dict(op.attributes)
    return written


def _op(index: int, facts: dict) -> GraphOp:
    constants = _types(facts.get("constants", {}))
    return GraphOp(
        facts["op"],
        f"{facts['op']}_{index}",
        _types(facts["in"]),
        tuple(map(_type, facts["out"])),
        constants,
        facts.get("attributes", {}),
        sum(bytes_of(type_) for types in constants.values() for type_ in types if type_.shape),
    )


def _texts(types: Mapping[str, Sequence[TensorType]]) -> dict[str, list[str]]:
    return {name: [*map(_text, each)] for name, each in types.items()}


def _text(type_: TensorType) -> str:
    return f"{type_.dtype}[{','.join(map(str, type_.sizes))}]"


def _types(facts: Mapping[str, Sequence[str]]) -> dict[str, tuple[TensorType, ...]]:
    return {name: tuple(map(_type, each)) for name, each in facts.items()}


def _type(text: str) -> TensorType:
    dtype, _, sizes = text.rstrip("]").partition("[")
    return TensorType(dtype, tuple(map(int, sizes.split(","))) if sizes else ())
