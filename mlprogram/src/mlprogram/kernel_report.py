"""Report which kernel runs each op of a package, and why others do not."""

from collections import Counter
from pathlib import Path

from mlprogram.kernels import native
from mlprogram.kernels.table import KERNELS
from mlprogram.run.open_sizes import OpenSizes
from mlprogram.run.pipeline import open_model
from mlprogram.run.precision import PRECISIONS
from mlprogram.run.program import MLProgram
from mlprogram.run.stretches import NativeStretch, divided
from mlprogram.tables import table


def planned(path: Path, function: str | None = None, precision: str = "fp16") -> dict:
    """The steps of a function, or of each program in a pipeline, in plain JSON values.

    A step has the name of its last op, the types of its ops, its kernel ("" for the plain op), why
    other kernels do not fit, and the number of the stretch in which it runs in C, or why it does
    not: at the inputs' default shapes, where a program leaves sizes open.
    """
    program = open_model(path, function, precision)
    parts = [program] if isinstance(program, MLProgram) else program.parts
    programs = [part for part in parts if isinstance(part, MLProgram)]
    return {
        "precision": precision,
        "compiled": native.status()[1],
        "functions": {
            f"{program.package.path.name}, {program.name}": _steps(program) for program in programs
        },
    }


def _steps(program: MLProgram) -> list[dict]:
    refused, compiled = program.plan.selection.refused, program.compiled
    parts, alone = compiled.parts, compiled.refused
    if isinstance(compiled.run, OpenSizes):
        shapes = {name: feature.shape for name, feature in program.features.items()}
        parts, alone = divided(program.plan, {0: shapes})
    stretches = [part for part in parts if isinstance(part, NativeStretch)]
    number = {id(step): i for i, stretch in enumerate(stretches) for step in stretch.steps}
    other = "it is in a block" if program.plan.native else "nothing runs in C"
    return [
        {
            "name": step.operation.name,
            "ops": [operation.type for operation in step.operations],
            "kernel": step.kernel,
            "refused": {
                name: reason
                for operation in step.operations
                for name, reason in refused.get(id(operation), {}).items()
            },
            "stretch": number.get(id(step)),
            "alone": "" if id(step) in number else alone.get(id(step), other),
        }
        for step in program.plan.main.all()
    ]


def plan_report(facts: dict) -> str:
    """The plan as text: equal steps in one line, those with a kernel first."""
    parts = [f"plan, computed {PRECISIONS[facts['precision']]}; kernels: {facts['compiled']}"]
    for name, steps in facts["functions"].items():
        ops = sum(len(step["ops"]) for step in steps)
        rows: list[tuple[str, ...]] = [
            (f"{count:,}", kernel or "plain", ops)
            for (kernel, ops), count in _alike(steps, KERNELS_IN_ORDER)
        ]
        parts.append(f"{name}: {ops:,} ops in {len(steps):,} steps\n{table(rows, indent=2)}")
        if any(step["stretch"] is not None for step in steps):
            parts.append(_stretches(steps))
        why = Counter(
            (step["ops"][-1], kernel, reason)
            for step in steps
            for kernel, reason in step["refused"].items()
        )
        if why:
            rows = [
                (f"{count:,}", op, f"not {kernel}:", reason)
                for (op, kernel, reason), count in why.most_common()
            ]
            parts.append(f"why not\n{table(rows, indent=2)}")
    return "\n\n".join(parts)


def _stretches(steps: list[dict]) -> str:
    """How many steps run in C, and why others do not."""
    inside = [step["stretch"] for step in steps if step["stretch"] is not None]
    count = len({*inside})
    said = f"{len(inside):,} of {len(steps):,} steps run in C, in {count:,} "
    said += "stretch" if count == 1 else "stretches"
    why = Counter((step["ops"][-1], step["alone"]) for step in steps if step["alone"])
    rows = [(f"{count:,}", op, reason) for (op, reason), count in why.most_common()]
    return f"{said}; these do not:\n{table(rows, indent=2)}" if rows else said


KERNELS_IN_ORDER = [*dict.fromkeys(kernel.name for kernel in KERNELS), ""]


def _alike(steps: list[dict], order: list[str]) -> list[tuple[tuple[str, str], int]]:
    """Count the steps by (kernel, ops), in the order of the table and then by number."""
    counts = Counter((step["kernel"], " ".join(step["ops"])) for step in steps)
    return sorted(counts.items(), key=lambda item: (order.index(item[0][0]), -item[1], item[0][1]))
