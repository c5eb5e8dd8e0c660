"""`ane-book convert model.onnx`: an ONNX graph that is no language model's bundle, to a package."""

from pathlib import Path
import re
from typing import Annotated, Literal

from ane_book.errors import InvalidInput
import typer

__all__ = ["Precision", "Shapes", "convert_onnx", "is_graph"]

Precision = Annotated[
    Literal["fp16", "fp32"] | None,
    typer.Option(help="Of an .onnx graph: what it computes in.  [default: fp16]"),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Of an .onnx graph: the sizes of an input, x=1,3,224,224."),
]


def is_graph(model: str, out: Path | None) -> bool:
    """Whether to make one package of a model: a graph that is no language model's, or is not to be.

    A bundle is a folder, and a package is named so.
    """
    from ane_book.weights.onnx import is_bundle

    if not model.endswith(".onnx"):
        return False
    return (out is not None and out.suffix == ".mlpackage") or not is_bundle(Path(model))


def convert_onnx(
    model: str, out: Path | None, precision: str | None, shapes: list[str] | None, force: bool, **no
) -> Path:
    """Convert the graph; `no` are options that are a language model's. Raises InvalidInput."""
    from ane_book.conversion.onnx import convert_graph

    if given := [name for name, value in no.items() if value is not None]:
        flag = given[0].replace("_", "-")
        raise InvalidInput(f"--{flag} is of language models, and {model} is an ONNX graph")
    if not Path(model).is_file():
        raise InvalidInput(f"{model}: not a file")
    if out is None:
        raise InvalidInput(f"name the package to make of {model}, as in --out model.mlpackage")
    return convert_graph(model, out, precision or "fp16", _parsed(shapes or []), force=force)


def _parsed(shapes: list[str]) -> dict[str, tuple[int, ...]]:
    """Sizes by input's name, of texts such as x=1,3,224,224."""
    found = {}
    for text in shapes:
        known = re.fullmatch(r"(.+)=(\d+(?:, *\d+)*)", text)
        if known is None:
            raise InvalidInput(f"--shape {text} is not like x=1,3,224,224")
        found[known[1]] = tuple(map(int, known[2].split(",")))
    return found
