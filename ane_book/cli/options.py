"""The options of the command line, each with its type, its bounds and its line of help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

WEIGHTS = "A reference model's name, a .gguf file, or a folder with config.json and safetensors"


def _names(incomplete: str) -> list[str]:
    """The reference models that a word may become; a shell completes files by itself."""
    known = sorted(file.stem for file in Path(__file__).parents[1].glob("models/reference/*.toml"))
    return [name for name in known if name.startswith(incomplete)]


# What shapes a conversion has no default here: `ane_book.convert` has it, and a bundle its own.
KV = Annotated[
    Literal["state", "host"] | None,
    typer.Option(help="Who keeps the KV cache: Core ML states, or the host.  [default: state]"),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most tokens of prompt and answer together.  [default: 512, or fewer where "
        "the model takes fewer]",
    ),
]
Quant = Annotated[
    str | None,
    typer.Option(
        help="How weights are stored, with what that cost SmolLM2-135M in perplexity: none, int8 "
        "(+0.7 %), lut8 (+0.3 %), lut6 (+6.7 %), int8-tensor (+9.5 %), int4 (+46 %, for a Mac's "
        "GPU) or lut4 (+925 %: nonsense; larger models may bear it); a lut also with -g1, -g8, "
        "-g32 or -tensor, the output channels of a palette.  [default: none]"
    ),
]
QuantHead = Annotated[str | None, typer.Option(help="The head's.  [default: as --quant]")]
Prefill = Annotated[
    int | None, typer.Option(min=2, help="Tokens that a prefill call takes.  [default: 64]")
]
ShardLimit = Annotated[
    str | None,
    typer.Option(
        "--shard-limit", "--limit", help="Most weight bytes of a program.  [default: 1GB]"
    ),
]
Partition = Annotated[
    Literal["layers", "whole", "projections"] | None,
    typer.Option(
        help="A program for as many layers as the limit allows, for all of them, or for each "
        "matrix, with the rest on the host.  [default: layers]"
    ),
]
Weights = Annotated[str, typer.Argument(help=f"{WEIGHTS}.", autocompletion=_names)]
Model = Annotated[
    str, typer.Argument(help=f"{WEIGHTS}; or a bundle's folder.", autocompletion=_names)
]
Encoder = Annotated[
    str,
    typer.Option(help=f"{WEIGHTS}; or a bundle's folder.", autocompletion=_names),
]
TextLength = Annotated[
    int | None,
    typer.Option(min=3, help="Most tokens of a text.  [default: what the model was made for]"),
]
System = Annotated[str | None, typer.Option(help='System prompt; "" is an empty one.')]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
Temperature = Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Draw among the K likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="Draw among the likeliest, up to P in sum.")]
Seed = Annotated[int | None, typer.Option(min=0, help="The same seed draws the same tokens.")]
Precision = Annotated[
    Literal["fp16", "fp32"], typer.Option(help="fp16 as on the device, fp32 as reference.")
]
FunctionName = Annotated[
    str | None, typer.Option(help="Function of the package.  [default: the package's own default]")
]
Inputs = Annotated[
    Path | None, typer.Option(help="A .npz file with an array for every input; else random ones.")
]
InputSeed = Annotated[int, typer.Option(min=0, help="Seed of random inputs.")]
BackendName = Annotated[
    Literal["auto", "mil", "coreml"],
    typer.Option(help="mil runs anywhere, coreml on a Mac; auto takes coreml where it can run."),
]
