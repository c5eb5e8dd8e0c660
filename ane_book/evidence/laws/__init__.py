"""The laws of the Neural Engine as a lint: rules that read a package's graph, and what they find.

    from ane_book.evidence import laws

    report = laws.check("model.mlpackage")      # a .mlmodelc, a bundle, or a folder of them
    report = laws.check(mlmodel)                # coremltools' MLModel, just converted
    report.findings, report.count("error")

    graph.py   a function as rules look at it
    rule.py    rules, findings, rules.toml
    rules/     the rules themselves, by what they look at
    report.py  findings as text, JSON, SARIF 2.1.0 and GitHub's annotations

A package is read, not run; weights are not expanded. What no rule finds is not proven to run on
the engine: see `ane_book.evidence.placement` for what the planner does, and a Mac for the rest.

Taught in the chapter "ANE laws".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ane_book.errors import InvalidPackage
from ane_book.evidence.inspect import is_bundle, refuse_weights
from ane_book.evidence.laws.graph import ProgramGraph, Seen
from ane_book.evidence.laws.report import LawReport
from ane_book.evidence.laws.rule import Finding, Place, Rule, load
from ane_book.evidence.laws.rules import norms, ops, partitions, shapes, states, weights
from mlprogram.package.function import Operation
from mlprogram.package.reader import Package, read_programs
import numpy as np

__all__ = ["Finding", "LawReport", "Rule", "check", "load", "packages_of"]

#: Rules by name, of a function and of a package; each is given its claim's value.
OF_FUNCTIONS: dict[str, Callable[[ProgramGraph, Any], Iterable[Seen]]] = {
    rule.__name__.replace("_", "-"): rule
    for rule in (*shapes.RULES, *ops.RULES, *weights.RULES, *states.RULES, *norms.RULES)
}
OF_PACKAGES: dict[str, Callable[[Package, Any], Iterable[Seen]]] = {
    rule.__name__.replace("_", "-"): rule for rule in weights.PACKAGE_RULES
}

MODELS = (".mlpackage", ".mlmodelc", ".mlmodel")


def check(
    model,
    rules: Mapping[str, Rule] | None = None,
    progress: Callable | None = None,
    calibrate: Mapping[str, np.ndarray] | Literal["golden"] | None = None,
) -> LawReport:
    """What the rules find in a package, a bundle, a folder of them, or an MLModel in memory.

    rules: those to look for, all when None (`load` reads a file of one's own). progress: called
    with (description, done, total) where there are several packages. calibrate: inputs to run a
    package on, by name, or "golden" for a bundle's own tokens, for the one rule that a graph alone
    cannot answer (sum-most); it takes as long as a run. Raises InvalidPackage for what is none of
    these, and InvalidInput for inputs that no function takes.
    """
    rules = load() if rules is None else rules
    if not isinstance(model, str | Path):
        return _in_memory(model, rules)
    path = Path(model)
    refuse_weights(path)
    report, total = LawReport(str(path)), 0
    packages = packages_of(path)
    for number, file in enumerate(packages, 1):
        for package in read_programs(file):
            total += weights.weight_bytes(package)
            _check_package(package, rules, report, _name(file, path))
        report.packages += 1
        if progress and len(packages) > 1:
            progress(f"checked {file.name}", number, len(packages))
    _check_whole(total, rules, report, path)
    if calibrate is not None and "sum-most" in rules:
        _check_sums(path, packages, calibrate, rules["sum-most"], report)
    return report


def packages_of(path: Path) -> list[Path]:
    """A package itself, or all that lie in a folder; InvalidPackage where there are none."""
    if not path.is_dir() or path.suffix in MODELS:
        return [path]
    if {"Manifest.json", "model.mil", "coremldata.bin"} & {file.name for file in path.iterdir()}:
        return [path]  # a package under a name of its own
    found = sorted(_below(path))
    if not found:
        raise InvalidPackage(f"{path}: no {', '.join(MODELS)} is in this folder or below")
    return found


def _below(root: Path) -> Iterator[Path]:
    """Packages below a folder, not what lies inside of one; links to folders are not followed.

    Nor is a bundle looked at that is being written.
    """
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
    """An MLModel of coremltools, whose ops may know the lines that they come from."""
    from ane_book.evidence.laws.source import lines

    package = Package.from_spec(model.get_spec(), model.weights_dir)
    report = LawReport("the model", packages=1)
    _check_package(package, rules, report, "the model", lines(model))
    return report


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
        for id_, rule in rules.items():
            for seen in OF_FUNCTIONS.get(id_, _nothing)(graph, rule.claim.value):
                report.add(rule, seen, _place(graph, seen, name, lines or {}))
                if rule.leaves and seen.operation is not None:
                    leaving[id(seen.operation)] = seen.operation
        if "partitions" in rules:
            for seen in partitions.cuts(graph, leaving):
                report.add(rules["partitions"], seen, _place(graph, seen, name, lines or {}))


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
    """What sums reach on inputs like those of use."""
    from ane_book.bundle import Bundle
    from ane_book.evidence.laws import calibrate

    most = rule.claim.number
    if isinstance(inputs, str):
        found = calibrate.golden_sums(Bundle.open(path), most)
    else:
        opened = map(Package, packages)
        found = (each for package in opened for each in calibrate.given_sums(package, inputs, most))
    for package, function, seen in found:
        graph = ProgramGraph(package, package.functions[function])
        report.add(rule, seen, _place(graph, seen, _name(package.path, path), {}))


def _check_whole(total: int, rules: Mapping[str, Rule], report: LawReport, path: Path) -> None:
    """What all packages of a bundle make together."""
    rule = rules.get("loaded-3gb")
    if rule and is_bundle(path) and total > rule.claim.number:
        report.add(rule, Seen(f"{total / 1e9:,.1f} GB of weights in all"), Place(str(path)))
