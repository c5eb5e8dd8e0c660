"""Place stages on machines: Ray chooses a node for each, which loads its range of layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import os
import time
from typing import Any

from ane_book.bundle import Bundle
from ane_book.errors import AneBookError, InvalidInput
from ane_serve.cluster.connection import machines
from ane_serve.cluster.files import pieces
from ane_serve.cluster.layout import cut, sizes
from ane_serve.cluster.stage import Stage
import ray
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: CPUs that a stage reserves on its node, where it is the only one of its model. It is little, so
#: that several models find room: they take turns, as programs on one Neural Engine do.
CPU = 0.1
WAIT, TRY = 60, 5  # seconds for free nodes, in all and until the nodes are counted again


class MachineLost(AneBookError):
    """A machine of a cluster is gone, and what it was at work on could not go on elsewhere."""


@dataclass(frozen=True)
class PlacedStage:
    """A stage on a node: Ray's handle, the node, its units of the bundle, whether the node is this
    one, and the threads that it may use."""

    actor: Any
    node: str
    units: range
    is_here: bool
    threads: int


@dataclass(frozen=True)
class Stages:
    """All stages of a model in order, and the placement group that reserves their nodes."""

    placed: tuple[PlacedStage, ...]
    group: Any

    def end(self) -> None:
        """End the stages and release their nodes; ignores stages that are lost."""
        if not ray.is_initialized():
            return
        for stage in self.placed:
            ray.kill(stage.actor)
        remove_placement_group(self.group)


def lost(error: BaseException) -> bool:
    """Whether an error of Ray's says that a node, an actor or what they held is gone."""
    errors = ray.exceptions
    gone = (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError)
    return isinstance(error, gone) or isinstance(getattr(error, "cause", None), gone)


def result(reference: Any, where: str) -> Any:
    """Wait for the result of a stage's call; `where` names the stage in errors.

    Raises MachineLost where the stage is gone, and AneBookError's kinds as the stage raised them.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, AneBookError):
            raise type(cause)(f"{where}: {cause}") from None
        if not lost(error):
            raise
        if isinstance(cause, ImportError) or "ModuleNotFoundError" in str(error):
            raise InvalidInput(
                f"{where}: this ane_serve cannot be imported there; install the same version, with "
                "its extra [cluster], in the environment that `ray start` runs in"
            ) from None
        raise MachineLost(f"{where} was lost: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def place(bundle: Bundle, precision: str, backend: str | None, most: int | None) -> Stages:
    """Start a stage on every node, at most `most`, and load its layers.

    Raises MachineLost where no node is free within a minute, or one goes while it loads,
    InvalidInput where a node runs another version, InvalidBundle where its files are damaged.
    """
    costs, head = sizes(bundle.manifest)
    group, nodes = _group(min(len(costs), most or len(costs)))
    ranges = cut(costs, len(nodes), head if nodes[0][1]["is_here"] else 0)
    started = []
    for (index, facts), own in zip(nodes, ranges, strict=True):
        strategy = PlacementGroupSchedulingStrategy(group, index)
        actor = ray.remote(Stage).options(num_cpus=CPU, scheduling_strategy=strategy).remote()
        started.append(PlacedStage(actor, units=own, **facts))
    stages = Stages(tuple(started), group)
    try:
        _load(bundle, stages.placed, precision, backend)
    except BaseException:
        stages.end()
        raise
    return stages


def _group(most: int) -> tuple[Any, list[tuple[int, dict]]]:
    """Reserve at most so many nodes: a placement group, and facts of each node, this one first."""
    deadline = time.monotonic() + WAIT
    while True:
        alive = machines()
        count = min(len(alive), most)
        if count:
            group = placement_group([{"CPU": CPU}] * count, strategy="STRICT_SPREAD")
            if group.wait(TRY):
                break
            remove_placement_group(group)
        if time.monotonic() > deadline:
            raise MachineLost(
                f"the cluster has {len(alive)} nodes with a CPU, and none of them was free for "
                f"{WAIT} s: `ray status` says what they do"
            )
        time.sleep(0.2)
    here = ray.get_runtime_context().get_node_id()
    nodes = []
    for index, node in placement_group_table(group)["bundles_to_node_id"].items():
        record = alive.get(node, {})
        where = f"node {node[:8]} ({record.get('NodeManagerAddress', 'unknown')})"
        threads = max(1, int(record.get("Resources", {}).get("CPU", 1)))
        nodes.append((index, {"node": where, "is_here": node == here, "threads": threads}))
    return group, sorted(nodes, key=lambda each: not each[1]["is_here"])


def _load(
    bundle: Bundle, placed: Sequence[PlacedStage], precision: str, backend: str | None
) -> None:
    def everywhere(call: Callable[[PlacedStage], Any]) -> list:
        calls = [(stage, call(stage)) for stage in placed]
        return [result(reference, stage.node) for stage, reference in calls]

    here = Stage().to_json()
    for stage, facts in zip(placed, everywhere(lambda s: s.actor.to_json.remote()), strict=True):
        for what, version in here.items():
            if facts[what] != version:
                raise InvalidInput(
                    f"{stage.node} runs {what} {facts[what]}, and this machine {version}: install "
                    "the same everywhere, so that every layer is computed in the same way"
                )
    path, text = os.path.abspath(bundle.path), (bundle.path / "manifest.json").read_text()
    missing = everywhere(lambda s: s.actor.open.remote(path, text, s.units.start, s.units.stop))
    for stage, packages in zip(placed, missing, strict=True):
        for package in packages:
            _send(bundle, stage, package)
    everywhere(lambda s: s.actor.load.remote(precision, backend, s.threads))


def _send(bundle: Bundle, stage: PlacedStage, package: str) -> None:
    actor = stage.actor
    result(actor.begin.remote(package), stage.node)
    for name in bundle.manifest.files:
        if name.startswith(f"{package}/"):
            for piece in pieces(bundle.path / name):
                result(actor.receive.remote(name, piece), stage.node)
    result(actor.keep.remote(package), stage.node)
