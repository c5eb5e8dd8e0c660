"""`mlprogram check`: packages against the laws of the Neural Engine."""

from contextlib import ExitStack
import json
import os
from pathlib import Path
from shutil import get_terminal_size
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from mlprogram.cli import options
from mlprogram.files import telling, written_whole
from mlprogram.progress import progress_bar
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from mlprogram.ane.laws import LawReport

Sarif = Annotated[Path | None, typer.Option(help="Write SARIF 2.1.0 to this file.")]
FailOn = Annotated[
    Literal["error", "warning", "note", "never"],
    typer.Option(help="Exit code 1 where a finding is of this severity, or graver."),
]
Rules = Annotated[
    Path | None,
    typer.Option(help="A TOML file: a table for each rule to look for, with its severity."),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(help="Look at the largest sums of a run, on the arrays of a .npz file."),
]
Annotations = Annotated[
    bool | None,
    typer.Option(
        "--github/--no-github",
        help="Print GitHub's annotations.  [default: where GITHUB_ACTIONS is true]",
    ),
]


def check_command(
    package: options.Packages,
    why: options.Why = False,
    as_json: options.AsJson = False,
    sarif: Sarif = None,
    fail_on: FailOn = "error",
    rules: Rules = None,
    calibrate: Calibrate = None,
    github: Annotations = None,
) -> None:
    """Check packages against the engine's laws and known faults.

    Exit code 0: nothing as grave as --fail-on was found; 1: not so.
    """
    from mlprogram.ane import faults, laws
    from mlprogram.package.description import load_inputs

    chosen = laws.load(rules, also=faults.load())
    given = None if calibrate is None else load_inputs(calibrate)
    with progress_bar() as progress:
        report = laws.check(package, chosen, progress, given)
    show(report.to_json, lambda: report.text(width(), why), as_json)
    if annotated(github):
        print("\n".join(report.annotations()), file=sys.stderr if as_json else sys.stdout)
    if sarif:  # last: what cannot be written takes nothing that was found along
        write_sarif(sarif, report)
    raise typer.Exit(1 if fail_on != "never" and report.fails(fail_on) else 0)


def write_sarif(path: Path, report: "LawReport") -> None:
    """Write a report as SARIF, whole or not at all; a pipe or a device is written to directly."""
    text = json.dumps(report.sarif(), indent=2) + "\n"
    with telling(path, "name another file"), ExitStack() as stack:
        if path.is_file() or not path.exists():
            path = stack.enter_context(written_whole(Path(os.path.realpath(path))))
        path.write_text(text, encoding="utf-8")


def width() -> int:
    """The columns of a report."""
    return min(100, get_terminal_size((100, 24)).columns)


def annotated(github: bool | None) -> bool:
    """Whether to print annotations: as it was said, or where GitHub runs the command."""
    return os.environ.get("GITHUB_ACTIONS") == "true" if github is None else github
