"""The options of the command line, most of them made from the records of `ane_book.options`."""

from collections.abc import Callable
from functools import wraps
import inspect
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from ane_book.errors import InvalidInput
import typer

if TYPE_CHECKING:
    from ane_book.options import Recipe, Sampling

WEIGHTS = (
    "A reference model's name, a .gguf file, or a folder with config.json and safetensors, or with "
    "the files of ONNX Runtime GenAI or transformers.js"
)
PACKAGES = "A .mlpackage or .mlmodelc, a bundle's folder, a reference model's name"


def names(incomplete: str) -> list[str]:
    """The reference models that a word may become; a shell completes files by itself."""
    known = sorted(file.stem for file in Path(__file__).parents[1].glob("reference/*.toml"))
    return [name for name in known if name.startswith(incomplete)]


Source = Annotated[
    str, typer.Argument(help=f"{WEIGHTS}; or any .onnx graph.", autocompletion=names)
]
Weights = Annotated[str, typer.Argument(help=f"{WEIGHTS}.", autocompletion=names)]
Model = Annotated[
    str, typer.Argument(help=f"{WEIGHTS}; or a bundle's folder.", autocompletion=names)
]
# As it was typed: a `Path` would take ./NAME, which is a folder, for the model of that name.
Package = Annotated[str, typer.Argument(help=f"{PACKAGES}.", autocompletion=names)]
Packages = Annotated[
    str, typer.Argument(help=f"{PACKAGES}, or a folder of them.", autocompletion=names)
]
Encoder = Annotated[
    str,
    typer.Option(help=f"{WEIGHTS}; or a bundle's folder.", autocompletion=names),
]
TextLength = Annotated[
    int | None,
    typer.Option(min=3, help="Most tokens of a text.  [default: what the model was made for]"),
]
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
Force = Annotated[
    bool,
    typer.Option("--force", help="Run a bundle that failed parity by its own evidence, too."),
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="Who guesses tokens, for a bundle with --verify to check several in a call: lookup, "
        "in prompt and answer, or a smaller model of the same tokenizer, by name or bundle. It "
        "changes the speed, and no token."
    ),
]
Adapter = Annotated[
    Path | None,
    typer.Option(
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
FLAGS = {
    "shard_limit": ("--shard-limit", "--limit"),
    "context": ("--context", "--max-seq-len"),
    "argmax_output": ("--argmax-output",),
}
TAKEN = "taken_fields"  # the attribute of a command that has what `takes` says
TYPED = {"shard_limit": str, "tiers": str}  # "1GB", "128,256"


def token_ids(text: str) -> list[int]:
    """The token ids that a text lists; raises InvalidInput."""
    try:
        ids = [int(word) for word in text.split()]
    except ValueError:
        ids = []
    if not ids:
        raise InvalidInput("--tokens takes whole numbers, such as '151644 8948 198'")
    return ids


def schema(text: str) -> str:
    """A JSON schema, or what is in a file of that name; raises InvalidInput."""
    if text.lstrip().startswith("{"):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise InvalidInput(f"--json-schema: {text[:80]!r} is no JSON object and no file") from None


def given(**options) -> dict:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def takes(record: Literal["Recipe", "Sampling"], *names: str) -> Callable[[Callable], Callable]:
    """Say of a command that it has these fields of a record as options; `with_taken` makes them.

    The command gets the given ones as a dict, in its argument `recipe` or `sampling`.
    """

    def decorate(command: Callable) -> Callable:
        vars(command).setdefault(TAKEN, {})[record] = names
        return command

    return decorate


def with_taken(command: Callable) -> Callable:
    """A command with the options that `takes` says, with the records' bounds and descriptions."""
    for record, names in vars(command).get(TAKEN, {}).items():
        command = _with_fields(command, record, names)
    return command


def _with_fields(command: Callable, record: str, names: tuple[str, ...]) -> Callable:
    from ane_book import options

    argument = record.lower()

    @wraps(command)
    def gather(**arguments):
        chosen = given(**{name: arguments.pop(name) for name in names})
        return command(**arguments, **{argument: chosen})

    signature = inspect.signature(command, eval_str=True)
    own = [p for name, p in signature.parameters.items() if name != argument]
    added = [_parameter(getattr(options, record), name) for name in names]
    vars(gather)["__signature__"] = signature.replace(parameters=[*own, *added])
    gather.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    return gather


def _parameter(record: "type[Recipe] | type[Sampling]", name: str) -> inspect.Parameter:
    """A field as a parameter for typer, with None (not given) as its default."""
    from annotated_types import Ge

    field = record.model_fields[name]
    unsaid = field.default in (None, (), "") or field.default is False
    default = "" if unsaid else f"  [default: {_said(field.default)}]"
    help_text = f"{field.description}{default}"
    bounds = [bound.ge for bound in field.metadata if isinstance(bound, Ge) and name not in TYPED]
    least: Any = bounds[0] if bounds else None
    option = typer.Option(*FLAGS.get(name, ()), help=help_text, min=least)
    kind = TYPED.get(name) or _kind(field.annotation)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, option])


def _kind(annotation):
    """A field's type without its bounds, and without None."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    if get_origin(annotation) in (Union, UnionType) and len(kinds) == 1:
        return _kind(kinds[0])
    return _kind(kinds[0]) if get_origin(annotation) is Annotated else annotation


def _said(default: object) -> str:
    """A default as it would be typed."""
    return "1GB" if default == 1_000_000_000 else str(default)
