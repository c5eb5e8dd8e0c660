"""`mlprogram explain`: what an error of Core ML, its compilers or coremltools means."""

from dataclasses import asdict
import sys
from typing import Annotated

from mlprogram.cli.options import AsJson
from mlprogram.errors import InvalidInput
from mlprogram.terminal import show
import typer

NOTHING = """The index of errors has nothing like this. What may help:
- give all that was printed, `COMMAND 2>&1 | mlprogram explain -`: a line above may say more
- `mlprogram check PACKAGE` looks for known faults in what was converted
- search github.com/apple/coremltools/issues for the words that are not your own names"""


def explain_command(
    text: Annotated[
        str, typer.Argument(help="What was printed, as pasted, or 'error -14'; - reads stdin.")
    ],
    as_json: AsJson = False,
) -> None:
    """Say what an error of Core ML means, and what to do.

    With the threads that report it. Exit code 1: the index does not have it.
    """
    from mlprogram.ane.claims import known_errors

    said = sys.stdin.read() if text == "-" else text
    if not said.strip():
        raise InvalidInput("nothing to explain: give the text that was printed, or - for stdin")
    found = known_errors.explain(said)
    texts = (entry.text() for entry in found)
    show(lambda: [asdict(entry) for entry in found], lambda: "\n\n".join(texts) or NOTHING, as_json)
    raise typer.Exit(int(not found))
