"""The options that commands have in common."""

from pathlib import Path
from typing import Annotated

import typer

Package = Annotated[Path, typer.Argument(help="A .mlpackage or .mlmodelc.")]
Packages = Annotated[Path, typer.Argument(help="A .mlpackage or .mlmodelc, or a folder of them.")]
Precision = Annotated[
    str,
    typer.Option(
        metavar="fp16|fp32|ane",
        help="fp16 as packages declare, fp32 as reference; ane: with activations as the engine is "
        "published to compute them, experimental.",
    ),
]
FunctionName = Annotated[
    str | None, typer.Option(help="Function of the package.  [default: the package's own default]")
]
Inputs = Annotated[
    Path | None, typer.Option(help="A .npz file with an array for every input; else random ones.")
]
InputSeed = Annotated[int, typer.Option(min=0, help="Seed of random inputs.")]
Why = Annotated[
    bool, typer.Option("--why", help="Print the evidence: sources, claims, every reason.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
