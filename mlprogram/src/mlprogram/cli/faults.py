"""`mlprogram faults`: what coremltools and Core ML are known to get wrong in a package."""

from collections.abc import Iterator
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Annotated

from mlprogram.cli import options
from mlprogram.cli.check import Annotations, FailOn, annotated, width
from mlprogram.cli.commands import told_to_end
from mlprogram.errors import InvalidInput, printable
from mlprogram.progress import progress_bar
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from mlprogram.ane.faults import Makers

System = Annotated[
    str,
    typer.Option(
        "--os", help="The system to look at, as macos26 or ios18.  [default: all that read it]"
    ),
]
Coremltools = Annotated[
    str, typer.Option(help="The version to go by.  [default: the one that a package names]")
]
Fix = Annotated[
    Path | None,
    typer.Option(help="Write the package here, with what an exact rewrite mends, proven first."),
]


def faults_command(
    package: options.Packages,
    system: System = "",
    coremltools: Coremltools = "",
    why: options.Why = False,
    as_json: options.AsJson = False,
    fix: Fix = None,
    fail_on: FailOn = "error",
    github: Annotations = None,
) -> None:
    """Show known bugs of coremltools and Core ML that a package meets.

    Each with what comes out, and what should, where both can be computed here; and constants that
    are not finite, which --fix bounds.

    Exit code 0: nothing as grave as --fail-on was found, or --fix left nothing so grave; 1: not so.
    """
    from mlprogram.ane import faults, laws

    known = faults.mendable(system, coremltools)
    made = faults.makers(package)
    _refuse_unread(made, system)
    if fix is not None:
        from mlprogram.ane.faults.fix import fix as write_fixed

        with told_to_end():
            mended = write_fixed(package, fix, known)
        show(mended.to_json, mended.text, as_json)
        raise typer.Exit(1 if fail_on != "never" and mended.fails(fail_on) else 0)
    with progress_bar() as progress:
        report = laws.check(package, known, progress)
    if report.findings:  # or no op has to run, which takes torch
        from mlprogram.ane.faults import numbers

        numbers.add(report)
    facts = {"makers": {name: vars(one) for name, one in made.items()}} | report.to_json()
    lines = _heads(made, system, coremltools)
    show(lambda: facts, lambda: "\n".join([*lines, "", report.text(width(), why)]), as_json)
    if annotated(github):
        print("\n".join(report.annotations()), file=sys.stderr if as_json else sys.stdout)
    raise typer.Exit(1 if fail_on != "never" and report.fails(fail_on) else 0)


def _refuse_unread(made: "dict[str, Makers]", system: str) -> None:
    """Raises InvalidInput for a package that the system does not read."""
    for name, makers in made.items():
        if system and not makers.readable(system):
            raise InvalidInput(
                f"{name}: {system} does not read it; it is {makers.text}: name such a system, or "
                "convert it for an older one"
            )


def _heads(made: "dict[str, Makers]", system: str, coremltools: str) -> Iterator[str]:
    """A line for each set of makers: the packages that they made, and who they are."""
    for makers in dict.fromkeys(made.values()):
        names = [name for name, one in made.items() if one == makers]
        several = names[0] if len(names) == 1 else f"{len(names):,} packages"
        asked = filter(None, [system, coremltools and f"coremltools {coremltools}"])
        yield printable(f"{several}: {makers.text}" + "".join(f"; asked for {a}" for a in asked))
