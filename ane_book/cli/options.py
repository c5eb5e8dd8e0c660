"""The options of the command line, most of them made from the records of `ane_book.options`."""

from collections.abc import Callable
from functools import update_wrapper
import inspect
from pathlib import Path
import re
from typing import Annotated, Any, Literal, get_type_hints

from ane_book.errors import InvalidInput
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
HEADINGS = {"Recipe": "Conversion (`ane-book convert --help` explains more)", "Sampling": "Answer"}
TYPED = {"shard_limit": str, "tiers": str}  # as they are typed: "1GB", "128,256"


def schema(text: str) -> str:
    """A JSON schema, or what is in a file of that name; raises InvalidInput."""
    if text.lstrip().startswith("{"):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise InvalidInput(f"--json-schema: {text[:80]!r} is no JSON object and no file") from None


def takes(
    record: Literal["Recipe", "Sampling"], *names: str, whole: bool = False
) -> Callable[[Callable], Callable]:
    """Give a command these fields of a record as options, described as they are there.

    The command gets those that are used as a dict, in its argument `recipe` or `sampling`. whole:
    all that is said of a recipe's fields, which other commands only begin. The records are read
    when the command is used, or its own --help: `ane-book --help` waits for no pydantic.
    """
    return lambda command: _Taking(command, record, names, whole)


class _Taking:
    """A command that takes fields of a record as options."""

    def __init__(self, command: Callable, record: str, names: tuple[str, ...], whole: bool):
        update_wrapper(self, command)
        self.command, self.record, self.names, self.whole = command, record, names, whole

    def __call__(self, **arguments: Any) -> Any:
        from ane_book import options

        chosen = {name: arguments.pop(name) for name in self.names}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        options.checked(getattr(options, self.record), chosen)  # before a model is converted
        return self.command(**arguments, **{self.record.lower(): chosen})

    @property
    def __signature__(self) -> inspect.Signature:
        signature, gathered = inspect.signature(self.command), self.record.lower()
        own = [each for name, each in signature.parameters.items() if name != gathered]
        added = [self._parameter(name) for name in self.names]
        return signature.replace(parameters=[*own, *added])

    def _parameter(self, name: str) -> inspect.Parameter:
        """A field as a parameter for typer, with None (not given) as its default."""
        from ane_book import options

        field = getattr(options, self.record).model_fields[name]
        default = "1GB" if name == "shard_limit" else field.default
        unsaid = default in (None, (), "") or default is False
        said = "" if unsaid else f"  [default: {default}]"
        text, heading = str(field.description), None if self.whole else HEADINGS[self.record]
        if self.record == "Recipe" and not self.whole:
            text = re.split("[:;(]", text)[0].rstrip(" .") + "."
        option = typer.Option(*FLAGS.get(name, ()), help=f"{text}{said}", rich_help_panel=heading)
        kind = TYPED.get(name) or get_type_hints(getattr(options, f"{self.record}Options"))[name]
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, option],
        )
