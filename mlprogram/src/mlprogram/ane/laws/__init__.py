"""Lint packages for the Neural Engine: rules that look for what it refuses or runs slowly.

    from mlprogram.ane import laws

    report = laws.check("model.mlpackage")      # a .mlmodelc, or a folder of them
    report = laws.check("model.aimodel")        # an asset of Core AI, by rules of its own
    report = laws.check(mlmodel)                # coremltools' MLModel, just converted
    report.findings, report.count("error")

    graph.py      a function's def-use graph, which the rules read
    rule.py       `Rule`, `Finding`, and the reader of rules.toml
    rules/        the rules, by subject
    calibrate.py  the one rule that runs the package: sums that overflow on given inputs
    report.py     findings as text, JSON, SARIF 2.1.0 and GitHub's annotations

A package is read, not run, and weights are not decompressed. Where its weights are not there, the
rules that read no numbers are applied, and the report says so. A package without findings is not
proven to run on the engine: see `mlprogram.ane.placement` for a prediction of Core ML's
planner, and measure on a Mac.

Taught in the chapter "Will it run there?"; its findings are listed on the page "Every claim".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlprogram.ane.laws.graph import ProgramGraph, Seen
from mlprogram.ane.laws.report import LawReport
from mlprogram.ane.laws.rule import Finding, Place, Rule, load
from mlprogram.ane.laws.rules import assets, norms, ops, partitions, shapes, states, weights
from mlprogram.errors import InvalidPackage
from mlprogram.package.function import Operation
from mlprogram.package.reader import Package, read_programs
import numpy as np

if TYPE_CHECKING:  # torch, which a package takes no time for
    from mlprogram.package.asset import AssetOp
    from mlprogram.run.program import MLProgram

__all__ = ["Finding", "LawReport", "Rule", "check", "load", "packages_of"]

#: Rules by name, for a function and for a package; each is called with its claim's value.
OF_FUNCTIONS: dict[str, Callable[[ProgramGraph, Any], Iterable[Seen]]] = {
    rule.__name__.replace("_", "-"): rule
    for rule in (*shapes.RULES, *ops.RULES, *weights.RULES, *states.RULES, *norms.RULES)
}
OF_PACKAGES: dict[str, Callable[[Package, Any], Iterable[Seen]]] = {
    rule.__name__.replace("_", "-"): rule for rule in weights.PACKAGE_RULES
}
#: Rules for each op of an asset of Core AI.
OF_ASSETS: dict[str, Callable[["AssetOp", Any], str | None]] = {
    rule.__name__.replace("_", "-"): rule for rule in assets.RULES
}

Inputs = Mapping[str, np.ndarray]
MODELS = (".mlpackage", ".mlmodelc", ".mlmodel")
ASSET = ".aimodel"  # of Core AI


def check(
    model,
    rules: Mapping[str, Rule] | None = None,
    progress: Callable | None = None,
    calibrate: "Inputs | Callable[[MLProgram], Inputs | None] | None" = None,
    together: bool = False,
) -> LawReport:
    """Apply the rules to a package, a folder of them, or an MLModel in memory.

    Of an asset of Core AI the files are compared, then its ops are looked at, which needs
    coreai-core. A folder's assets are left out where it is missing.

    rules: all if None; `load` reads others from a file. progress: called with (description, done,
    total) if there are several packages. calibrate: inputs by name, or a function that gives those
    of a program or None, to run packages on for the rule that a graph alone cannot answer
    (sum-most). together: the packages of the folder are one model's, and loaded together.

    Raises InvalidPackage if `model` is none of these, InvalidInput for inputs that no function
    takes.
    """
    rules = load() if rules is None else rules
    if not isinstance(model, str | Path):
        return _in_memory(model, rules)
    path = Path(model)
    report, total = LawReport(str(path)), 0
    packages = [] if path.suffix == ASSET else packages_of(path)
    for asset in _assets_of(path, packages):
        _check_asset(asset, rules, report, _name(asset, path))
    for number, file in enumerate(packages, 1):
        for package in read_programs(file):
            total += weights.weight_bytes(package)
            _check_package(package, rules, report, _name(file, path))
            report.unseen += package.absent.values()
        report.packages += 1
        if progress and len(packages) > 1:
            progress(f"checked {file.name}", number, len(packages))
    whole = rules.get("loaded-3gb") if together else None  # of packages that are loaded together
    if whole and total > whole.claim.number:
        report.add(whole, Seen(f"{total / 1e9:,.1f} GB of weights in all"), Place(str(path)))
    if calibrate is not None and "sum-most" in rules:
        _check_sums(path, packages, calibrate, rules["sum-most"], report)
        report.calibrated = True
    return report


def packages_of(path: Path) -> list[Path]:
    """The package at `path`, or all packages in a folder; raises InvalidPackage for none."""
    if not path.is_dir() or path.suffix in MODELS:
        return [path]
    files = {file.name for file in path.iterdir()}
    if {"Manifest.json", "model.mil", "coremldata.bin", "main.mlirb"} & files:
        return [path]  # a package without the usual suffix, or an asset, which its reader refuses
    found = sorted(_below(path))
    if not found:
        raise InvalidPackage(f"{path}: no {', '.join(MODELS)} is in this folder or below")
    return found


def _assets_of(path: Path, packages: list[Path]) -> list[Path]:
    """The asset at `path`, or those beside a folder's packages where they can be read."""
    if path.suffix == ASSET:
        return [path]
    if not path.is_dir() or path.suffix in MODELS or find_spec("coreai") is None:
        return []
    beside = (file.with_suffix(ASSET) for file in packages)
    return sorted(asset for asset in beside if asset.exists())


def _below(root: Path) -> Iterator[Path]:
    """The packages below a folder, without links to folders, and without unfinished bundles."""
    folders = [root]
    while folders:
        for path in folders.pop().iterdir():
            if path.suffix in MODELS:
                yield path
            elif path.suffix != ".partial" and path.is_dir() and not path.is_symlink():
                folders.append(path)


def _name(file: Path, root: Path) -> str:
    return str(file) if file == root else str(file.relative_to(root))


def _in_memory(model, rules: Mapping[str, Rule]) -> LawReport:
    """Check an MLModel of coremltools, whose ops may know their lines of torch source."""
    from mlprogram.ane.laws.source import lines

    package = Package.from_spec(model.get_spec(), model.weights_dir)
    report = LawReport("the model", packages=1)
    _check_package(package, rules, report, "the model", lines(model))
    return report


def found(rule: Rule, graph: ProgramGraph) -> Iterator[Seen]:
    """What a rule finds in a function. Raises InvalidPackage for an op that it cannot read."""
    try:
        yield from (rule.find or OF_FUNCTIONS.get(rule.id, _nothing))(graph, rule.claim.value)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidPackage(
            f"function {graph.function.name!r} has an op with inputs that it cannot have, where "
            f"{rule.id} is looked for ({error})"
        ) from error


def _check_package(
    package: Package,
    rules: Mapping[str, Rule],
    report: LawReport,
    name: str,
    lines: Mapping[str, str] | None = None,
) -> None:
    for id_, rule in rules.items():
        for seen in OF_PACKAGES.get(id_, _nothing)(package, rule.claim.value):
            report.add(rule, seen, Place(name))
    for function in package.functions.values():
        graph, leaving = ProgramGraph(package, function), dict[int, Operation]()
        for rule in rules.values():
            for seen in found(rule, graph):
                report.add(rule, seen, _place(graph, seen, name, lines or {}))
                if rule.leaves and seen.operation is not None:
                    leaving[id(seen.operation)] = seen.operation
        if "partitions" in rules:
            for seen in partitions.cuts(graph, leaving):
                report.add(rules["partitions"], seen, _place(graph, seen, name, lines or {}))


def _check_asset(asset: Path, rules: Mapping[str, Rule], report: LawReport, name: str) -> None:
    from mlprogram.package.asset import check_asset, old_locations, read_program

    check_asset(asset)
    report.packages += 1
    if old_locations(asset):  # such an asset ends the process that reads it
        if rule := rules.get("asset-locations"):
            report.add(rule, Seen("places as coreai-core 1.0.0b1 writes them"), Place(name))
        return
    for op in read_program(asset):
        for id_, rule in rules.items():
            look = OF_ASSETS.get(id_)
            if look and (seen := look(op, rule.claim.value)):
                operand = "" if op.type == "graph" else ", ".join(op.operands)
                place = Place(name, op.function, op.number, op.of, op.type, operand)
                report.add(rule, Seen(seen), place)


def _nothing(*_) -> tuple[Seen, ...]:
    return ()


def _place(graph: ProgramGraph, seen: Seen, package: str, lines: Mapping[str, str]) -> Place:
    function, operation = graph.function.name, seen.operation
    if operation is None:
        return Place(package, function)
    number = graph.places.get(id(operation), 0)
    line = lines.get(operation.name, "")
    count = len(graph.operations)
    return Place(package, function, number, count, operation.type, operation.name, line)


def _check_sums(path: Path, packages: list[Path], inputs, rule: Rule, report: LawReport) -> None:
    """Run the packages on `inputs`, and report sums that reach the rule's limit."""
    from mlprogram.ane.laws import calibrate

    look = calibrate.own_sums if callable(inputs) else calibrate.given_sums
    for package in map(Package, packages):
        for function, seen in look(package, inputs, rule.claim.number):
            graph = ProgramGraph(package, package.functions[function])
            report.add(rule, seen, _place(graph, seen, _name(package.path, path), {}))
