"""List the contents of a package: functions, inputs, states, ops by type, weights by dtype.

Only the program is read; weights are counted, not loaded, and no file changes.
"""

from collections import Counter
from pathlib import Path

from mlprogram.analysis.memory import predict
from mlprogram.package.container import Container, open_container
from mlprogram.package.function import Function
from mlprogram.package.reader import Package
from mlprogram.tables import table

OPS = 4  # the most frequent types of op that a report names


def inspect_package(path: str | Path) -> dict:
    """Describe the functions of a package, and its weights by dtype, in plain JSON values.

    Weights count once, however many functions share them; small constants in the program itself do
    not count. For a pipeline each part is described. absent: why a weight file is not there.
    """
    container = open_container(path)
    if container.spec.WhichOneof("Type") == "pipeline":
        return _pipeline(container)
    return _program(Package(container, weights=False))


def _pipeline(container: Container) -> dict:
    # it takes torch, which what only reads a package does not need
    from mlprogram.run.pipeline import Pipeline, Suppression

    return {
        "package": str(container.path),
        "specification_version": container.spec.specificationVersion,
        "parts": [
            part.to_json() if isinstance(part, Suppression) else _program(part.package)
            for part in Pipeline(container).parts
        ],
    }


def _program(package: Package) -> dict:
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
        "absent": [*package.absent.values()],
    }


def _function(function: Function) -> dict:
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


def package_report(facts: dict, why: bool = False) -> str:
    """The facts as text: the default function's values and ops, and a line for each other function.

    why: the values of every function, and all of its ops by type.
    """
    if "suppression" in facts:
        return f"{facts['package']}\n{table(facts['suppression'], indent=2)}"
    between = "\n\n" if why else "\n"
    parts = [f"{facts['package']} (specification version {facts['specification_version']})"]
    if "parts" in facts:
        return "\n\n".join([*parts, *(package_report(part, why) for part in facts["parts"])])
    for name, function in facts["functions"].items():
        default = name == facts["default_function"]
        title = f"function {name} ({function['opset']}{', default' if default else ''})"
        if default or why:
            parts.append(f"{title}\n{table(_rows(function), indent=2)}")
        else:
            parts.append(f"{title}: {_count(function)} ops")
        if why:
            counts = [(f"{n:,}", op) for op, n in function["operations"].items()]
            parts.append(f"ops of {name}\n{table(counts, indent=2)}")
    rows = [
        (dtype, f"{n:,} tensor{'s' * (n != 1)}", f"{entry['bytes']:,} bytes")
        for dtype, entry in facts["weights"].items()
        for n in [entry["tensors"]]
    ]
    parts.append("weights\n" + (table(rows, indent=2) if rows else "  none"))
    return between.join([*parts, *(f"not there: {why}" for why in facts["absent"])])


def packages_report(packages: list[dict], why: bool = False) -> str:
    """The facts of several packages as text: a line for each; why: all that each holds."""
    if why:
        return "\n\n".join(package_report(facts, why) for facts in packages)
    rows = []
    for facts in packages:
        functions = [f"{name} {_count(one)} ops" for name, one in facts["functions"].items()]
        stored = sum(entry["bytes"] for entry in facts["weights"].values())
        said = ", ".join(functions), f"{stored:,} bytes of weights"
        rows.append((Path(facts["package"]).name, *said))
    return f"packages\n{table(rows, indent=2)}"


def _count(function: dict) -> str:
    """How many ops a function has, without constants."""
    return f"{sum(function['operations'].values()):,}"


def _rows(function: dict) -> list[tuple[str, str, str]]:
    """A function's inputs, states and outputs, its memory, and its most frequent ops."""
    rows = [
        (part[:-1], value, type_)
        for part in ("inputs", "states", "outputs")
        for value, type_ in function[part].items()
    ]
    counts, memory = function["operations"], function["memory"]
    values = memory["values"]
    needs = f"{values:,} bytes" if values is not None else "as the shape of the inputs demands"
    rows.append(("memory", f"states {memory['states']:,} bytes", f"values {needs}"))
    most = [f"{n:,} {op}" for op, n in counts.items()]
    rest = f" and {len(most) - OPS} more types" if len(most) > OPS else ""
    rows.append(("ops", _count(function), ", ".join(most[:OPS]) + rest))
    return rows
