"""`mlprogram convert model.onnx`: convert an ONNX graph to a package."""

from pathlib import Path
import re
import sys
from typing import Annotated, Literal

from mlprogram.cli.commands import told_to_end
from mlprogram.errors import InvalidInput, printable
import typer

Precision = Annotated[
    Literal["fp16", "fp32"] | None,
    typer.Option(help="What it computes in.  [default: fp16]"),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help="The sizes of an input, x=1,3,224,224."),
]
Check = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        help="Hold what was made to ONNX Runtime.  [default: check]",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(help="A .npz file of arrays to check with; else random ones."),
]


def convert_command(
    graph: Annotated[str, typer.Argument(help="An .onnx file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The .mlpackage to write.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write it anew if it exists.")] = False,
    precision: Precision = None,
    shape: Shapes = None,
    inputs: Inputs = None,
    check: Check = None,
) -> None:
    """Convert an .onnx graph to a package, and compare it with ONNX Runtime.

    Prints its path. What came of the comparison is on stderr, a line each for its precision and for
    fp32, and changes no exit code.
    """
    from mlprogram.onnx.graph import convert_graph
    from mlprogram.package.description import load_inputs

    if not Path(graph).is_file():
        raise InvalidInput(f"{graph}: not a file")
    if out is None:
        raise InvalidInput(f"name the package to make of {graph}, as in --out model.mlpackage")
    arrays = load_inputs(inputs) if inputs else None  # before the work, should there be none
    with told_to_end():
        convert_graph(graph, out, precision or "fp16", _parsed(shape or []), force=force)
    print(out, flush=True)
    if check is not False:
        _check(graph, out, arrays)


def _check(model: str, package: Path, arrays: dict | None) -> None:
    from mlprogram.onnx.check import check_graph

    for verdict in check_graph(model, package, arrays):
        head = "warning: " if verdict.agrees is False else ""
        print(printable(f"{head}check {verdict}"), file=sys.stderr)


def _parsed(shapes: list[str]) -> dict[str, tuple[int, ...]]:
    """Parse texts such as x=1,3,224,224 to shapes by the input's name."""
    found = {}
    for text in shapes:
        known = re.fullmatch(r"(.+)=(\d+(?:, *\d+)*)", text)
        if known is None:
            raise InvalidInput(f"--shape {text} is not like x=1,3,224,224")
        found[known[1]] = tuple(map(int, known[2].split(",")))
    return found
