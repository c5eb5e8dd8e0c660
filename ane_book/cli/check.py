"""`ane-book check`: the laws of the Neural Engine, held against packages."""

import json
import os
from pathlib import Path
import sys
from typing import Annotated, Literal

from ane_book.errors import printable
from ane_book.progress import progress_bar
import typer

__all__ = ["check"]

Level = Literal["error", "warning", "note", "never"]


def check(
    package: Annotated[
        Path, typer.Argument(help="A .mlpackage or .mlmodelc, a bundle, or a folder of them.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF 2.1.0 to this file.")] = None,
    fail_on: Annotated[
        Level, typer.Option(help="The mildest finding that makes the exit code 1.")
    ] = "error",
    rules: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file: a table for each rule to look for, severities of your own."
        ),
    ] = None,
    github: Annotated[
        bool | None,
        typer.Option(
            "--github/--no-github",
            help="Print GitHub's annotations too.  [default: where GITHUB_ACTIONS is true]",
        ),
    ] = None,
) -> None:
    """Hold packages against the laws of the engine.

    Exit code 0: nothing as grave as --fail-on was found; 1: something was.
    """
    from ane_book.evidence import laws

    chosen = laws.load(rules) if rules else None
    with progress_bar() as progress:
        several = len(laws.packages_of(package)) > 1
        report = laws.check(package, chosen, progress if several else None)
    if sarif:
        sarif.write_text(json.dumps(report.sarif(), indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report.facts(), indent=2) if as_json else report.text())
    if (os.environ.get("GITHUB_ACTIONS") == "true") if github is None else github:
        for line in report.annotations():
            print(printable(line), file=sys.stderr if as_json else sys.stdout)
    raise typer.Exit(1 if fail_on != "never" and report.fails(fail_on) else 0)
