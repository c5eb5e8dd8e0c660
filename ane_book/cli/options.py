"""The options of the command line, most of them made from the records of `ane_book.options`."""

from collections.abc import Callable
from functools import wraps
import inspect
from pathlib import Path
import re
from typing import Annotated, Literal, get_type_hints

from ane_book.errors import InvalidInput
from ane_book.options import Recipe, RecipeOptions, Record, Sampling, SamplingOptions, checked
import typer

WEIGHTS = (
    "A reference model's name, a .gguf file, or a folder with config.json and safetensors, or with "
    "the files of ONNX Runtime GenAI"
)
PACKAGES = (
    "A .mlpackage or .mlmodelc, a bundle's folder, or a reference model or weights, of which it is "
    "the bundle in the cache"
)


def names(incomplete: str) -> list[str]:
    """The reference models that a word may become; a shell completes files by itself."""
    known = sorted(file.stem for file in Path(__file__).parents[1].glob("reference/*.toml"))
    return [name for name in known if name.startswith(incomplete)]


Weights = Annotated[str, typer.Argument(help=f"{WEIGHTS}.", autocompletion=names)]
Model = Annotated[
    str, typer.Argument(help=f"{WEIGHTS}; or a bundle's folder.", autocompletion=names)
]
# As it was typed: a `Path` would take ./NAME, which is a folder, for the model of that name.
Package = Annotated[str, typer.Argument(help=f"{PACKAGES}.", autocompletion=names)]
Packages = Annotated[
    str, typer.Argument(help=f"{PACKAGES}; or a folder of packages.", autocompletion=names)
]
Encoder = Annotated[
    str,
    typer.Option("--model", "-m", help=f"{WEIGHTS}; or a bundle's folder.", autocompletion=names),
]
TextLength = Annotated[
    int | None,
    typer.Option(min=3, help="Most tokens of a text.  [default: what the model was made for]"),
]
Draft = Annotated[
    Literal["lookup"] | None,
    typer.Option(
        help="Who guesses tokens, for a bundle with --verify to check several in a call: lookup, "
        "in prompt and answer. It changes the speed, and no token."
    ),
]
Adapter = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="A LoRA adapter's folder, as PEFT writes it, for a bundle with --lora-slots.",
    ),
]
BackendName = Annotated[
    Literal["auto", "mil", "coreml", "coreai"],
    typer.Option(
        help="mil runs anywhere, coreml on a Mac, coreai where its runtime is installed (slow on "
        "Linux, least so with --precision fp32); auto takes coreml where it can run, else mil."
    ),
]


#: Fields whose flags are not simply their names.
FLAGS = {"quant": ("--quant", "-q"), "argmax_output": ("--argmax-output",)}
#: What --help has over the fields of a record, in another command than `convert`.
HEADINGS = {Recipe: "Conversion (`ane-book convert --help` explains more)", Sampling: "Answer"}
KINDS = get_type_hints(RecipeOptions) | get_type_hints(SamplingOptions)
KINDS |= {"shard_limit": str, "tiers": str}  # as they are typed: "1GB", "128,256"


def schema(text: str) -> str:
    """A JSON schema, or what is in a file of that name; raises InvalidInput."""
    if text.lstrip().startswith("{"):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise InvalidInput(f"--json-schema: {text[:80]!r} is no JSON object and no file") from None


def takes(record: type[Record], *names: str, whole: bool = False) -> Callable[[Callable], Callable]:
    """Give a command these fields of a record as options, described as they are there.

    The command gets those that are used as a dict, in its argument `recipe` or `sampling`. whole:
    all that is said of a recipe's fields, which other commands only begin.
    """
    argument = record.__name__.lower()

    def decorate(command: Callable) -> Callable:
        @wraps(command)
        def call(**arguments):
            chosen = {name: arguments.pop(name) for name in names}
            chosen = {name: value for name, value in chosen.items() if value is not None}
            checked(record, chosen)  # before a model is converted
            return command(**arguments, **{argument: chosen})

        signature = inspect.signature(command)
        own: list[inspect.Parameter] = [
            each for name, each in signature.parameters.items() if name != argument
        ]
        added: list[inspect.Parameter] = [_parameter(record, name, whole) for name in names]
        vars(call)["__signature__"] = signature.replace(parameters=[*own, *added])
        return call

    return decorate


def _parameter(record: type[Recipe] | type[Sampling], name: str, whole: bool) -> inspect.Parameter:
    """A field as a parameter for typer, with None (not given) as its default."""
    field = record.model_fields[name]
    default = "1GB" if name == "shard_limit" else field.default
    unsaid = default in (None, (), "") or default is False
    said = "" if unsaid else f"  [default: {default}]"
    text, heading = str(field.description), None if whole else HEADINGS[record]
    if record is Recipe and not whole:
        text = re.split("[:;(]", text)[0].rstrip(" .") + "."
    option = typer.Option(*FLAGS.get(name, ()), help=f"{text}{said}", rich_help_panel=heading)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[KINDS[name] | None, option],
    )
