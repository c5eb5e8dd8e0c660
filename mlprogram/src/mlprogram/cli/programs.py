"""`mlprogram inspect`, `run` and `save`: a package's contents, what it computes, other forms."""

from pathlib import Path
from typing import Annotated

from mlprogram.cli import options
from mlprogram.cli.commands import told_to_end
from mlprogram.errors import InvalidInput
from mlprogram.terminal import show
import typer

Kernels = Annotated[
    bool, typer.Option("--kernels", help="Show which kernel each op got, and why not others.")
]
Semantics = Annotated[
    str | None,
    typer.Option(
        metavar="documented|reported",
        help="Where the description of an op and reports of Core ML part, compute the one or the "
        "other.  [default: by the evidence of each]",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the outputs as .npz.")]


def inspect_command(
    package: options.Package,
    kernels: Kernels = False,
    function: options.FunctionName = None,
    precision: options.Precision = "fp16",
    why: options.Why = False,
    as_json: options.AsJson = False,
) -> None:
    """Show what a package holds: functions, inputs, ops and weights.

    With --kernels also how a function is run, with --why every function and all of its ops by type.
    """
    from mlprogram.contents import inspect_package, package_report

    facts = inspect_package(package)
    texts = [package_report(facts, why)]
    if kernels:
        from mlprogram.kernel_report import plan_report, planned

        facts["plan"] = planned(package, function, precision)
        texts.append(plan_report(facts["plan"]))
    show(lambda: facts, lambda: "\n\n".join(texts), as_json)


def run_command(
    package: options.Package,
    inputs: options.Inputs = None,
    function: options.FunctionName = None,
    precision: options.Precision = "fp16",
    seed: options.InputSeed = 0,
    out: Out = None,
    semantics: Semantics = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a package, and show what it computes and needs."""
    from mlprogram.execute import execute, execution_report

    facts = execute(package, function, inputs, precision, seed, out, semantics)
    show(lambda: facts, lambda: execution_report(facts), as_json)


def save_command(
    source: Annotated[Path, typer.Argument(help="A .mlpackage, .mlmodelc or .mlmodel.")],
    target: Annotated[
        Path, typer.Argument(help="What to write: a .mlpackage, a .mlmodelc or an .aimodel.")
    ],
) -> None:
    """Write a model as a package, compiled, or for Core AI."""
    with told_to_end():
        if target.suffix == ".aimodel":
            from mlprogram.coreai import save_asset

            save_asset(source, target)
        elif target.suffix in (".mlpackage", ".mlmodelc"):
            from mlprogram import save

            save(source, target)
        else:
            raise InvalidInput(f"{target}: the name must end in .mlpackage, .mlmodelc or .aimodel")
    print(target)
