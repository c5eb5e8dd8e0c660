"""What a package or a bundle holds: functions, inputs, states, ops by type, weights by dtype.

Only the program is read; weights are counted, not loaded, and no file changes.
"""

from collections import Counter
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import TYPE_CHECKING

from ane_book.errors import InvalidPackage, printable

if TYPE_CHECKING:  # what a package needs takes no pydantic, and a bundle no protobuf
    from ane_book.bundle import Bundle
    from ane_book.mil.package.container import Container
    from ane_book.mil.package.function import Function
    from ane_book.mil.package.reader import Package

__all__ = [
    "facts",
    "inspect_bundle",
    "inspect_package",
    "inspect_path",
    "is_bundle",
    "refuse_weights",
    "report",
    "table",
]


def inspect_path(path: str | Path) -> dict:
    """Facts about a bundle (a folder with manifest.json) or a package, as plain JSON values.

    Raises InvalidBundle or InvalidPackage.
    """
    path = Path(path)
    if is_bundle(path):
        from ane_book.bundle import Bundle

        return inspect_bundle(Bundle.open(path))
    refuse_weights(path)
    return inspect_package(path)


def refuse_weights(path: Path) -> None:
    """Raise InvalidPackage for a .gguf file, with the commands that take one, ready to paste."""
    if path.suffix == ".gguf":
        file = quote(str(path))
        raise InvalidPackage(
            f"{path}: a .gguf file holds weights, not a program; `ane-book plan {file}` shows what "
            f"would be made of it, and `ane-book convert {file}` makes a bundle to inspect"
        )


def is_bundle(path: Path) -> bool:
    """Whether a folder is a bundle; a package's Manifest.json is another file, even on a Mac."""
    return path.is_dir() and any(file.name == "manifest.json" for file in path.iterdir())


def inspect_bundle(bundle: "Bundle") -> dict:
    """What the manifest says, and the facts of every package."""
    manifest = bundle.manifest
    packages = dict.fromkeys(part.package for part in manifest.packages)
    return {
        "bundle": str(bundle.path),
        "name": manifest.name,
        "task": manifest.task,
        "config": bundle.config.model_dump(),
        "recipe": manifest.recipe.model_dump(),
        "source": manifest.source.model_dump(),
        "files": manifest.files,
        "evidence": bundle.evidence.model_dump(mode="json")["levels"],
        "packages": [inspect_package(bundle.path / name) for name in packages],
    }


def inspect_package(path: str | Path) -> dict:
    """The functions of one package, and its weights by dtype.

    Weights are counted once a package, however many functions share them; small constants that lie
    in the program itself do not count. Of a pipeline these are the facts of each part.
    """
    from ane_book.mil.package.container import open_container
    from ane_book.mil.package.reader import Package

    container = open_container(path)
    if container.spec.WhichOneof("Type") == "pipeline":
        return _pipeline(container)
    return _program(Package(container))


def _pipeline(container: "Container") -> dict:
    from ane_book.mil.run.pipeline import Pipeline, Suppression

    return {
        "package": str(container.path),
        "specification_version": container.spec.specificationVersion,
        "parts": [
            part.facts() if isinstance(part, Suppression) else _program(part.package)
            for part in Pipeline(container).parts
        ],
    }


def _program(package: "Package") -> dict:
    weights: dict[str, dict[str, int]] = {}
    for _, constant in package.weights:
        entry = weights.setdefault(constant.type.dtype, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += constant.stored_bytes
    return {
        "package": str(package.path),
        "specification_version": package.specification_version,
        "default_function": package.default_function,
        "functions": {name: _function(f) for name, f in package.functions.items()},
        "weights": weights,
    }


def _function(function: "Function") -> dict:
    from ane_book.mil.analysis.memory import predict

    states, values = predict(function)
    operations = Counter(o.type for o in function.operations() if o.type != "const")
    return {
        "opset": function.opset,
        **{
            part: {name: str(type_) for name, type_ in getattr(function, part).items()}
            for part in ("inputs", "states", "outputs")
        },
        "operations": dict(operations.most_common()),
        "memory": {"states": states, "values": values},
    }


def report(facts: dict) -> str:
    """The facts as text, for reading."""
    if "bundle" not in facts:
        return _package_report(facts)
    config = facts["config"]
    recipe = {name: value for name, value in facts["recipe"].items() if value not in (None, ())}
    head = [
        ("bundle", facts["bundle"]),
        ("model", f"{facts['name']} ({config['architecture']}, {config['num_layers']} layers)"),
        ("source", f"{facts['source']['kind']}: {', '.join(facts['source']['files'])}"),
        ("recipe", ", ".join(f"{key} {value}" for key, value in recipe.items())),
        ("size", f"{sum(facts['files'].values()):,} bytes in {len(facts['files'])} files"),
    ]
    if "verified" in facts:
        head.append(("verified", f"all {facts['verified']} files are as they were written"))
    parts = [table(head), f"evidence\n{table(_levels(facts['evidence']), indent=2)}"]
    return "\n\n".join([*parts, *map(_package_report, facts["packages"])])


def _levels(evidence: dict[str, dict]) -> list[tuple[str, ...]]:
    from ane_book.bundle.evidence import LEVELS

    return [
        (f"{name} {LEVELS[name]}", level["status"], level["date"] or "", level["reason"])
        for name, level in evidence.items()
    ]


def _package_report(facts: dict) -> str:
    if "suppression" in facts:
        return f"{facts['package']}\n{table(facts['suppression'], indent=2)}"
    version = facts["specification_version"]
    parts = [f"{facts['package']} (specification version {version})"]
    if "parts" in facts:
        return "\n\n".join([*parts, *map(_package_report, facts["parts"])])
    for name, function in facts["functions"].items():
        default = ", default" if name == facts["default_function"] else ""
        rows = [
            (part[:-1], value, type_)
            for part in ("inputs", "states", "outputs")
            for value, type_ in function[part].items()
        ]
        counts, memory = function["operations"], function["memory"]
        values = memory["values"]
        needs = f"{values:,} bytes" if values is not None else "as the shape of the inputs demands"
        rows.append(("memory", f"states {memory['states']:,} bytes", f"values {needs}"))
        parts.append(f"function {name} ({function['opset']}{default})\n{table(rows, indent=2)}")
        title = f"ops of {name}: {sum(counts.values())} without constants"
        parts.append(f"{title}\n{table([(f'{n:,}', op) for op, n in counts.items()], indent=2)}")
    rows = [
        (dtype, f"{n:,} tensor{'s' * (n != 1)}", f"{entry['bytes']:,} bytes")
        for dtype, entry in facts["weights"].items()
        for n in [entry["tensors"]]
    ]
    parts.append("weights\n" + (table(rows, indent=2) if rows else "  none"))
    return "\n\n".join(parts)


def facts(rows: list[tuple[str, str]], width: int) -> str:
    """Headings and what they say, which goes on below itself where a line is full."""
    left = max(len(heading) for heading, _ in rows) + 2
    cells = []
    for heading, text in rows:
        first, *others = wrap(
            text, max(width - left, 20), break_on_hyphens=False, break_long_words=False
        ) or [""]
        cells += [(heading, first), *(("", line) for line in others)]
    return table(cells)


def table(rows: list[tuple[str, ...]], indent: int = 0) -> str:
    """Rows as aligned columns; a column of numbers is set to the right. A cell is one line."""
    cells = [[printable(cell).replace("\n", r"\n") for cell in row] for row in rows]
    columns = [list(column) for column in zip(*cells, strict=True)]
    for column in columns:
        width = max(map(len, column))
        numeric = all(cell[:1].isdigit() for cell in column)
        column[:] = [cell.rjust(width) if numeric else cell.ljust(width) for cell in column]
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join(" " * indent + line for line in lines)
