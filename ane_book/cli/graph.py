"""`ane-book convert model.onnx`: convert an ONNX graph (no language model) to a package."""

from pathlib import Path
import re
import sys
from typing import Annotated, Literal

from ane_book.errors import InvalidInput, printable
import typer

__all__ = ["Check", "Inputs", "Precision", "Shapes", "convert_onnx", "is_graph"]

Precision = Annotated[
    Literal["fp16", "fp32"] | None,
    typer.Option(help="Of an .onnx graph: what it computes in.  [default: fp16]"),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Of an .onnx graph: the sizes of an input, x=1,3,224,224."),
]
Check = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        help="Of an .onnx graph: hold what was made to ONNX Runtime.  [default: check]",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(help="Of an .onnx graph: a .npz file of arrays to check with; else random ones."),
]


def is_graph(model: str, out: Path | None) -> bool:
    """Whether to convert a model to a single package: an .onnx graph that is not a language model,
    or whose output is named .mlpackage (a bundle is a folder)."""
    from ane_book.weights.onnx import is_bundle

    if not model.endswith(".onnx"):
        return False
    return (out is not None and out.suffix == ".mlpackage") or not is_bundle(Path(model))


def convert_onnx(
    model: str,
    out: Path | None,
    force: bool,
    precision: Literal["fp16", "fp32"] | None,
    shapes: list[str] | None,
    check: bool | None,
    inputs: Path | None,
    **no,
) -> None:
    """Convert the graph, print the package's path, and report the check's result on stderr.

    no: options that apply only to language models; raises InvalidInput if one is given.
    """
    from mlprogram.onnx.graph import convert_graph
    from mlprogram.package.description import load_inputs

    if given := [name for name, value in no.items() if value is not None]:
        flag = given[0].replace("_", "-")
        raise InvalidInput(f"--{flag} is of language models, and {model} is an ONNX graph")
    if not Path(model).is_file():
        raise InvalidInput(f"{model}: not a file")
    if out is None:
        raise InvalidInput(f"name the package to make of {model}, as in --out model.mlpackage")
    arrays = load_inputs(inputs) if inputs else None  # before the work, should there be none
    convert_graph(model, out, precision or "fp16", _parsed(shapes or []), force=force)
    print(out, flush=True)
    if check is not False:
        _check(model, out, arrays)


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
