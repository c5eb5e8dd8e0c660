"""Hold a Core ML package to its source: the first op at which the two part, in the source's terms.

    print(compare_with_source(Path("model.mlpackage"), "model.onnx"))

The same inputs go through both, the package on the executor. What is compared, and why a rounding
is not taken for a fault:

- the package runs in single precision with the weights that it stores, and the source with these
  same weights where it is seen that they are its own (`_stored`);
- each op of the source is run on the package's own values (`walk.py`), so that errors do not grow;
- half precision is looked at last, as a whole: where its outputs are far off, though every op is
  right in single precision, the op that loses them is named.

Taught in the chapter "Test any ML Program without a Mac".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from mlprogram import MLProgram
from mlprogram.compare import diff
from mlprogram.errors import InvalidInput
from mlprogram.onnx.source import images, inputs, suppression
from mlprogram.onnx.source.causes import find_cause
from mlprogram.onnx.source.graph import SourceGraph, SourceNode, open_source
from mlprogram.onnx.source.match import (
    PackageValue,
    ValueIndex,
    align,
    summarise,
)
from mlprogram.onnx.source.package import PackageRun
from mlprogram.onnx.source.report import Parting, SourceDifference
from mlprogram.onnx.source.walk import Walk, rounded
import numpy as np

__all__ = ["Parting", "SourceDifference", "compare_with_source"]

#: The largest error of one op in single precision: the order of sums, and in a package of half
#: precision constants that the converter computed and rounded (a norm folded into a convolution).
SINGLE, HALF = 1e-4, 2e-3
#: How many standard deviations of its error by chance the size of a slice may be off.
CHANCE = 5
#: The largest error of an output in half precision: 100 roundings in one direction.
LOST = 0.05


@dataclass
class _Comparison:
    """What one comparison knows: the two sides, what each is given, and how they are paired."""

    run: PackageRun
    source: SourceGraph
    tolerance: float
    given: dict[str, np.ndarray]  # of the package
    fed: dict[str, np.ndarray] = field(default_factory=dict)  # of the source
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)  # the package's constants among these
    compressed: dict[str, int] = field(default_factory=dict)  # the package's, and in how many bits
    fault: "images.ImageFault | None" = None
    notes: list[str] = field(default_factory=list)


def compare_with_source(
    package: Path,
    source: str,
    function: str | None = None,
    given: Path | None = None,
    precision: str = "fp16",
    tolerance: float | None = None,
    seed: int = 0,
    pixels: str = "auto",
    channels: str = "rgb",
    trust_source: bool = False,
) -> SourceDifference:
    """Compare a package with what it was converted from; see `open_source` for `source`.

    given: a .npz file of inputs; random ones if None. precision: of the last comparison, "fp32" for
    none. tolerance: the largest error of one op, relative to the largest value; by default what the
    package's weights allow. pixels, channels: what the source takes in an image's place (`images`).
    trust_source: open a .pt2, which may run code of its author.
    Raises InvalidInput, and what opening either side raises.
    """
    run, graph = PackageRun(package, function), open_source(source, trust_source)
    pairs = inputs.paired(run, graph)
    arrays = inputs.for_package(run, graph, pairs, given, seed)
    run.run(arrays)
    constants, stored = _stored(graph.constants, run)
    allowed = HALF if run.is_half else SINGLE
    one = _Comparison(run, graph, allowed if tolerance is None else tolerance, arrays)
    one.constants, one.stored = constants, stored
    if tolerance is None:
        one.compressed = run.compressed
    _feed(one, pairs, pixels, channels)
    on = str(given) if given else f"random inputs, seed {seed}"
    found = _compared(one)
    found.sides = {"package": str(package), "source": graph.title, "on": on}
    if found.first is None and precision != "fp32":
        _in_half(one, found, package, function, precision)
    return found


def _stored(
    constants: Mapping[str, np.ndarray], run: PackageRun
) -> tuple[dict[str, np.ndarray], set[str]]:
    """The source's constants as the package stores them, and the package's names of these.

    A constant stands for the source's if it is near in some order of axes, and if its rows are no
    larger or smaller on the whole: rounding and quantisation are so, and a wrong scale is not.
    """
    half, room = run.is_half, 0.2 if run.compressed else HALF
    stored = [(n, array, summarise(array)) for n, array in run.constants() if array.size > 1]
    found, names = {}, set()
    for name, array in constants.items():
        found[name] = array
        if array.dtype.kind != "f":
            continue
        summary = summarise(array)
        for place, other, known in stored:
            near = other.size == array.size and summary.near(known, room)
            if near and (same := align(array, other, room)) and _unscaled(array, same[0]):
                found[name] = np.asarray(same[0], array.dtype)
                names.add(place)
                break
        else:
            found[name] = rounded(array) if half else array
    return found, names


def _unscaled(theirs: np.ndarray, ours: np.ndarray) -> bool:
    """Whether every slice along every axis has the source's size, but for what rounding to few bits
    does to it by chance, which is the more the smaller it is."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    for axis in range(b.ndim) if b.ndim > 1 else ():
        others = tuple(other for other in range(b.ndim) if other != axis)
        power, product = (b**2).sum(axis=others), (a * b).sum(axis=others)
        scale = np.divide(product, power, out=np.ones_like(power), where=power > 0)
        apart = ((a - b * np.expand_dims(scale, others)) ** 2).mean(axis=others)
        by_chance = CHANCE * np.sqrt(np.maximum(apart, apart.mean()) * power)
        far = np.abs(product - power) > np.maximum(0.04 * power, by_chance)
        if b.shape[axis] > 1 and far.any():
            return False
    return True


def _feed(one: _Comparison, pairs: Mapping[str, str], pixels: str, channels: str) -> None:
    """Make the source's inputs; of images by what both sides do to them first."""
    for name, theirs in pairs.items():
        feature, wanted = one.run.features[name], one.source.inputs[theirs]
        array = one.given[name]
        if not feature.color or array.ndim != 4 or array.shape[1] not in (1, 3):
            one.fed[theirs] = inputs.for_source(name, array, wanted)
            continue
        own, last = images.of_source(one.source, theirs, one.constants)
        package = images.of_package(name, one.run.values)
        given = images.choose_pixels(pixels, channels, one.source, theirs, own, package)
        one.notes.append(f"source input {theirs!r} gets {given}")
        one.fed[theirs] = images.prepared(feature, wanted, array.astype(np.float64), given)
        fault = images.image_fault(own, last, package, given, feature.color, theirs)
        one.fault = one.fault or fault


def _compared(one: _Comparison) -> SourceDifference:
    index = ValueIndex(one.run.values, one.tolerance)
    ours, theirs = suppression.of_package(one.run), suppression.node_of(one.source)
    if ours is not None and theirs is not None:
        ends: dict[str, PackageValue | None] = dict.fromkeys(theirs.inputs[:2])
    else:
        ends = _ends(one, ours is not None)
    walk = Walk(
        one.source, index, one.fed, one.constants, ends, one.stored, one.run.is_half,
        one.compressed,
    )  # fmt: skip
    found = SourceDifference(
        walk.loosest, len(walk.matches), len(walk.own) + len(one.fed), len(one.run.values),
        notes=one.notes, errors=_errors(one, walk),
        made={name: match.package.name for name, match in walk.matches.items()},
    )  # fmt: skip
    if ours is not None:
        detections = suppression.of_source(one.source, walk.values)
        if detections is None:
            one.notes.append(
                "the package suppresses boxes and the source does not: compared is what goes in"
            )
        else:
            found.suppression = suppression.compare_suppression(ours, detections)
    found.first = _first(one, walk, found)
    return found


def _ends(one: _Comparison, anywhere: bool) -> dict[str, PackageValue | None]:
    """The source's outputs and the package's that they are compared with.

    anywhere: the package goes on where the source ends, so that any value will do.
    """
    names, ours = one.source.outputs, dict(one.run.outputs())
    if anywhere:
        return dict.fromkeys(names)
    same: dict[str, PackageValue | None] = {}
    for spelled in (str, _clean):  # a good name stays its owner's
        for name in names:
            if name not in same and spelled(name) in ours:
                same[name] = ours.pop(spelled(name))
    lost = [name for name in names if name not in same]
    if len(lost) == len(ours):
        same |= dict(zip(lost, ours.values(), strict=True))
    elif same and lost:
        one.notes.append(f"the package has no output {', '.join(lost)}")
    if same:
        return {name: same[name] for name in names if name in same}
    raise InvalidInput(
        f"{one.run.path} gives {', '.join(ours)}, and its source {', '.join(names)}: they have to "
        "be as many, or have the same names; is it the source of this package?"
    )


def _clean(name: str) -> str:
    """As coremltools cleans a name."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)


def _errors(one: _Comparison, walk: Walk) -> dict[str, float]:
    """The error of each output from what the source makes of its own values, weights included."""
    values: dict[str, Any] = dict(one.source.constants) | one.fed
    for node in one.source.nodes:
        values |= one.source.run_node(node, values)
    found = {}
    for name, end in walk.ends.items():
        match, array = walk.matches.get(name), values[name]
        ours = end.array if end else match.aligned if match else None
        if ours is None or not isinstance(array, np.ndarray):
            found[name] = inf
            continue
        found[name] = diff({"y": ours}, {"y": array}, {}).outputs[0].error
        if end and (ours.dtype.kind == "f") != (array.dtype.kind == "f"):
            one.notes.append(
                f"output {name!r} is {ours.dtype} in the package and {array.dtype} in the source"
            )
    return found


def _first(one: _Comparison, walk: Walk, found: SourceDifference) -> Parting | None:
    """The first parting, if there is one; what is done to an image comes before all else."""
    verdict = found.suppression
    if verdict is not None and verdict.before:
        walk.open.clear()  # boxes agree, by corners or by centre
    parted, lost = walk.parted, [name for name in one.source.inputs if name in walk.open]
    if one.fault is not None and (parted or lost):
        return _of_image(one, walk)
    if parted:
        return _of_node(one, walk, parted)
    if lost:
        text = f"the package has input {lost[0]!r} in no value: is it read at all?"
        node = SourceNode(lost[0], "input", (), (lost[0],))
        return Parting(node, None, None, [], "input", text)
    if verdict is not None and not verdict.equal:
        (last,) = [n for n in one.source.nodes if n is suppression.node_of(one.source)]
        return Parting(last, None, None, walk.agreeing([last]), verdict.kind, verdict.text)
    return None


def _of_image(one: _Comparison, walk: Walk) -> Parting:
    fault = one.fault
    assert fault is not None  # what brought us here
    nodes = {node.name: node for node in one.source.nodes}
    node = nodes.get(fault.node) or SourceNode(fault.node, "input", (), (fault.node,))
    value = next((v for v in one.run.values if v.op and v.array.ndim == 4), None)
    array = walk.values[node.outputs[0]]
    gap = None
    if value is not None and isinstance(array, np.ndarray) and value.array.size == array.size:
        gap = diff({"y": value.array}, {"y": array.reshape(value.array.shape)}, {}).outputs[0]
    return Parting(node, value, gap, walk.agreeing([node]), fault.kind, fault.text)


def _of_node(one: _Comparison, walk: Walk, parted: list[SourceNode]) -> Parting:
    """The first node that parts, or the one that the cause blames."""
    held = [(n, a) for n, a in one.run.constants() if n not in one.stored and a.size > 1]
    cause = find_cause(walk, sorted(set(_small_constants(one.run))), held)
    if cause is not None:
        match = cause.match
        array = walk.own.get(match.source, match.aligned)
        gap = diff({"y": match.aligned}, {"y": array}, {}).outputs[0]
        agree = walk.agreeing([cause.node]) or walk.agreeing(parted[:1])
        return Parting(cause.node, match.package, gap, agree, cause.kind, cause.text)
    agree = walk.agreeing(parted[:1])
    value, array = _counterpart(walk, parted[0])
    if value is None:
        text = (
            "no op of the package makes anything of what it reads that the source has not: it "
            "is left out, or a constant stands in its place"
        )
        return Parting(parted[0], None, None, agree, "missing", text)
    apart = diff({"y": value.array}, {"y": array}, {}).outputs[0]
    return Parting(parted[0], value, apart, agree)


def _small_constants(run: PackageRun) -> list[float]:
    """The numbers that a package stores alone, and the least and largest of its masks."""
    found: list[float] = []
    for _, array in run.constants():
        if array.size == 1 or (array.size <= 4096 and len(np.unique(array)) == 2):
            found += [float(array.min()), float(array.max())]
    return [x for x in found if np.isfinite(x) and x][:400]


def _counterpart(walk: Walk, node: SourceNode) -> tuple[PackageValue | None, np.ndarray]:
    """What the package makes of the values that a node reads: of its size the nearest, else the
    next. None if it makes nothing of them that the source has not as well."""
    name = next((name for name in node.outputs if name in walk.own), None)
    if name is None:
        return next(iter(walk.beside(node)), None), np.zeros(0)
    array: Any = walk.own[name]
    found = walk.stand_in(name) if name in walk.hidden else None
    near = [found] if found is not None else walk.beside(node)
    same = [v for v in near if v.array.size == array.size]
    if same:
        flat = array.reshape(-1).astype(np.float64)
        return min(same, key=lambda v: float(np.abs(v.array.reshape(-1) - flat).mean())), array
    return (near[0] if near else None), array


def _in_half(
    one: _Comparison, found: SourceDifference, path: Path, function: str | None, precision: str
) -> None:
    """Whether half precision loses what is right in single precision, and at which op."""
    if len(one.run.programs) != 1 or one.run.suppressions:
        found.notes.append("a pipeline: its parts are compared in single precision alone")
        return
    program = MLProgram(one.run.programs[0].package, function, precision)
    apart = diff(program, one.run.programs[0].plain("fp32"), one.given, LOST)
    found.half = {gap.name: gap.error for gap in apart.outputs}
    if apart.equal or apart.first is None:
        return
    gap = apart.first
    names = {each.name: each for each in one.run.values}
    value = names.get(gap.name)
    nodes = [n for n in one.source.nodes if found.made.get(n.outputs[0]) == gap.name]
    node = nodes[0] if nodes else SourceNode(gap.name, gap.op, (), (gap.name,))
    text = f"right in single precision, lost in {precision}"
    found.first = Parting(node, value, gap, [], "half precision", text)
