"""`ane-book residency`: where this Mac runs a package or a bundle, function by function."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from ane_book.cli import options
from ane_book.cli.load import path_of
from ane_book.cli.output import AsJson, keep, show
from ane_book.progress import progress_bar
import typer

if TYPE_CHECKING:
    from ane_book.evidence.residency import Residency

__all__ = ["residency_command"]

UNMEASURED = 3  # the exit code if it cannot be measured


def residency_command(
    path: options.Package,
    function: options.FunctionName = None,
    units: Annotated[
        Literal["CPU_AND_NE", "ALL"], typer.Option(help="What Core ML may use, and is judged.")
    ] = "CPU_AND_NE",
    soak: Annotated[int, typer.Option(min=1, help="Predictions in a row at the end.")] = 500,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for a function; compilers may need minutes.")
    ] = 1800,
    as_json: AsJson = False,
) -> None:
    """Ask this Mac whether its Neural Engine runs a package.

    And whether it stays right there. Every program of a bundle gets its golden tokens, a package
    alone random inputs. A bundle keeps the answer in its evidence.json. Exit code 0: every function
    is resident; 1: one is not; 3: unmeasured, since this is no Mac with an engine.
    """
    from ane_book.evidence.inspect import is_bundle, refuse_weights
    from ane_book.evidence.residency import bundle_level, measure_each
    from mlprogram.package.container import open_container

    place = path_of(path)
    if not is_bundle(place):
        refuse_weights(place)
        open_container(place)  # what is no package is told on any machine
    with progress_bar() as progress:
        found = dict(
            measure_each(place, function, progress, units=units, soak=soak, timeout=timeout)
        )
    facts = {key: one.facts() for key, one in found.items()}
    show(lambda: facts, lambda: "\n".join(_lines(found)), as_json)
    if is_bundle(place) and function is None:  # last: damaged evidence takes no answer along
        from ane_book.bundle import Bundle

        keep(Bundle.open(place), "L2", bundle_level(found))
    verdicts = {one.verdict for one in found.values()}
    raise typer.Exit(UNMEASURED if "unmeasured" in verdicts else int(verdicts != {"resident"}))


def _lines(found: "dict[str, Residency]") -> Iterator[str]:
    from mlprogram.ane.claims.known_errors import explain

    for key, one in found.items():
        yield f"{key}: {one.verdict}: {one.reason}"
        for line in one.said:
            yield f"  compiler: {line}"
            yield from (f"    {entry.id}: {entry.do}" for entry in explain(line)[:1])
