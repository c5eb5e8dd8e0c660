"""`mlprogram diff`: the first op at which two packages part, or a package and its source."""

from pathlib import Path
from typing import Annotated, Literal

from mlprogram.cli import options
from mlprogram.errors import InvalidInput
from mlprogram.terminal import show
import typer

Tolerance = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Largest difference, relative to the largest value in B, or in what one op of the "
        "source makes.  [default: 0.01; with --source what the package's weights allow]",
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        help="What A was converted from: FILE.onnx, FILE.pt2 of torch.export.save, or "
        "python:FILE.py:FUNCTION, which returns a module and its inputs, and is executed."
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-source",
        help="Open a .pt2, which may run code of its author.",
    ),
]
Pixels = Annotated[
    Literal["auto", "raw", "unit", "signed", "imagenet"] | None,
    typer.Option(
        help="With --source: what it takes for an image: pixels, pixels / 255, -1 to 1, or by "
        "ImageNet's mean and deviation.  [default: auto, what it shows]"
    ),
]
Channels = Annotated[
    Literal["rgb", "bgr"] | None,
    typer.Option(help="With --source: in which order it takes channels.  [default: rgb]"),
]

Backend = Annotated[
    Literal["coreai"] | None,
    typer.Option(help="Compare with Core AI's runtime, op by op, through an asset made of A."),
]


def diff_command(
    a: options.Package,
    b: Annotated[
        Path | None, typer.Argument(help="The reference; without it, A in single precision.")
    ] = None,
    source: Source = None,
    inputs: options.Inputs = None,
    function: options.FunctionName = None,
    precision: options.Precision = "fp16",
    tolerance: Tolerance = None,
    pixels: Pixels = None,
    channels: Channels = None,
    trust_source: Trust = False,
    backend: Backend = None,
    why: options.Why = False,
    seed: options.InputSeed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Show where a package differs from another, or from its --source.

    Without B and --source, A is compared with itself in single precision, or with --backend in
    another runtime. Where they part, and with --why, it names what depends on how Core ML computes
    it. Exit code 0: every output is equal within the tolerance, with --source every op as well; 1:
    it is not.
    """
    if sum(map(bool, (source, b, backend))) > 1:
        raise InvalidInput("a package is compared with B, with --source or by --backend: name one")
    if not source and (pixels or channels or trust_source):
        raise InvalidInput("--pixels, --channels and --trust-source go with --source")
    if source:
        from mlprogram.arithmetic import report
        from mlprogram.compare.packages import arithmetic_of
        from mlprogram.onnx.source import compare_with_source

        held = compare_with_source(
            a, source, function, inputs, precision, tolerance, seed,
            pixels or "auto", channels or "rgb", trust_source,
        )  # fmt: skip
        touched = arithmetic_of(a, function) if why or not held.equal else {}
        lines = ["", *report(touched, why)] if touched else []
        facts = held.to_json() | {"arithmetic": touched}
        show(lambda: facts, lambda: "\n".join([str(held), *lines]), as_json)
        raise typer.Exit(0 if held.equal else 1)
    limit = 0.01 if tolerance is None else tolerance
    if backend:
        from mlprogram.coreai.compare import compare_with_executor

        found = compare_with_executor(a, function, inputs, precision, limit, seed)
    else:
        from mlprogram.compare.packages import compare_packages

        found = compare_packages(a, b, function, inputs, precision, limit, seed, why)
    show(lambda: found.facts, lambda: found.text, as_json)
    raise typer.Exit(0 if found.equal else 1)
