"""`mlprogram residency`: where this Mac runs a function of a package."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mlprogram.cli import options
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from mlprogram.ane.mac.residency import Residency


UNMEASURED = 3  # the exit code if it cannot be measured

Units = Annotated[
    Literal["CPU_AND_NE", "ALL"], typer.Option(help="What Core ML may use, and is judged.")
]
Soak = Annotated[int, typer.Option(min=1, help="Predictions in a row at the end.")]
Timeout = Annotated[
    float, typer.Option(min=1, help="Seconds for a function; compilers may need minutes.")
]


def residency_command(
    path: options.Package,
    function: options.FunctionName = None,
    units: Units = "CPU_AND_NE",
    soak: Soak = 500,
    timeout: Timeout = 1800,
    row: Annotated[
        bool, typer.Option("--row", help="A device row of it instead, as of `mlprogram row`.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Ask this Mac whether its Neural Engine runs a package.

    And whether it stays right there, on random inputs. Exit code 0: the function is resident; 1: it
    is not; 3: unmeasured, since this is no Mac with an engine.
    """
    from mlprogram.package.container import open_container

    open_container(Path(path))  # what is no package is told on any machine
    if row:
        from mlprogram.cli.row import show_row

        return show_row({"own": Path(path)}, function, timeout, as_json)
    end_without_engine(Path(path), as_json)
    from mlprogram.ane.mac.residency import measure

    found = {Path(path).name: measure(path, function, units=units, soak=soak, timeout=timeout)}
    raise tell(found, as_json)


def end_without_engine(path: Path, as_json: bool) -> None:
    """Say so and end where this machine has no engine, before what measures is imported."""
    from mlprogram.ane.mac.verdict import Residency
    from mlprogram.machine import neural_engine

    engine, reason = neural_engine()
    if not engine:
        raise tell({path.name: Residency("unmeasured", reason)}, as_json)


def tell(found: "Mapping[str, Residency]", as_json: bool) -> typer.Exit:
    """Show the verdicts by name; returns the end: code 0 where all are resident, 1 where one is
    not, 3 where it cannot be measured."""
    facts = {key: one.to_json() for key, one in found.items()}
    show(lambda: facts, lambda: "\n".join(_lines(found)), as_json)
    verdicts = {one.verdict for one in found.values()}
    return typer.Exit(UNMEASURED if "unmeasured" in verdicts else int(verdicts != {"resident"}))


def _lines(found: "Mapping[str, Residency]") -> Iterator[str]:
    """The verdicts by name, each with what compilers said of it."""
    from mlprogram.ane.claims.known_errors import explain

    for key, one in found.items():
        yield f"{key}: {one.verdict}: {one.reason}"
        for line in one.said:
            yield f"  compiler: {line}"
            yield from (f"    {entry.id}: {entry.do}" for entry in explain(line)[:1])
