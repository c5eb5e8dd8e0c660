"""`mlprogram row`: what this Mac makes of a few small packages, to hand in; and to check rows."""

from pathlib import Path
from typing import Annotated

from mlprogram.cli.options import AsJson
from mlprogram.cli.residency import UNMEASURED
from mlprogram.progress import progress_bar
import typer


def row_command(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Rows to check instead, filed or sent by somebody.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=10, help="Seconds for all of it.")] = 120,
    as_json: AsJson = False,
) -> None:
    """Measure what this Mac makes of five small packages.

    Where Core ML plans their ops, how fast it is, and whether the numbers and states are right,
    beside what is predicted. Prints one JSON object of at most 4 KB, without names and paths, and a
    link that opens an issue with it. Nothing is sent. Exit code 3: unmeasured, since this is no
    Mac.
    """
    if files:
        from mlprogram.ane.mac.row import read_rows

        rows = read_rows(files)
        print(f"{len(rows)} {'rows' if len(rows) > 1 else 'row'} checked: nothing is wrong")
        return
    show_row({}, None, timeout, as_json)


def show_row(packages: dict[str, Path], function: str | None, timeout: float, only: bool) -> None:
    """Measure a row, of these packages or the small ones, and print it; only: without the link."""
    from mlprogram import machine

    if not machine.CAN_PREDICT:
        print(f"unmeasured: {machine.CAN_PREDICT_REASON}")
        raise typer.Exit(UNMEASURED)
    from mlprogram.ane.mac.row import link, text
    from mlprogram.ane.mac.row.form import ISSUES
    from mlprogram.ane.mac.row.measure import measure_row

    with progress_bar() as progress:
        row = measure_row(packages, function, timeout=timeout, progress=progress)
    written, address = text(row), link(row)
    print(written, end="")
    if not only:
        how = address or f"{ISSUES}\n(the row is too long for a link: paste it there)"
        print(f"\nThis is all of it, and nothing was sent. To hand it in, open\n{how}")
