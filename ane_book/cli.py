"""`ane-book`: the library from a terminal.

Answers and tables go to stdout; progress, statistics and errors to stderr, so that output can be
piped. What the user can mend ends in one line `error: ...` and exit code 2.
"""

from importlib.util import find_spec
import json
import os
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from ane_book.errors import AneBookError, PromptTooLong, printable
from ane_book.progress import progress_bar, typed_lines
import typer

if TYPE_CHECKING:  # everything heavy is imported by the command that needs it
    from ane_book.runtime import Result, Session, Stream

__all__ = ["app", "main"]

app = typer.Typer(
    help="Language models for Apple's Neural Engine: convert, run and look inside, on any machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

WEIGHTS = "A reference model's name, a .gguf file, or a folder with config.json and safetensors"

# What shapes a conversion has no default here: `ane_book.convert` has it, and a bundle its own.
KV = Annotated[
    Literal["state", "host"] | None,
    typer.Option(help="Who keeps the KV cache: Core ML states, or the host.  [default: state]"),
]
Context = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens of prompt and answer together.  [default: 512]"),
]
Quant = Annotated[
    str | None,
    typer.Option(
        help="How weights are stored: none, int8, int8-tensor, int4, lut4, lut6 or lut8; a lut "
        "also with -g1, -g8, -g32 or -tensor, the output channels of a palette.  [default: none]"
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
Model = Annotated[str, typer.Argument(help=f"{WEIGHTS}; or a bundle's folder.")]
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


@app.command()
def models() -> None:
    """List the reference models: weights, recipe, evidence, published figures."""
    import ane_book
    from ane_book.inspect import table

    known = ane_book.reference_models().values()
    print(table([(model.name, model.size, model.license, model.taught) for model in known]))
    for model in known:
        print(f"\n{model.name}\n{table(model.facts(), indent=2)}")


@app.command()
def convert(
    model: Annotated[str, typer.Argument(help=f"{WEIGHTS}.")],
    source: Annotated[
        Path | None, typer.Option(help="A reference model's weights; random: made up.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the bundle; by default one in the cache.")
    ] = None,
    kv: KV = None,
    context: Context = None,
    quant: Quant = None,
    quant_head: QuantHead = None,
    prefill: Prefill = None,
    shard_limit: ShardLimit = None,
    partition: Partition = None,
    argmax_output: Annotated[
        bool, typer.Option("--argmax-output", help="Return the likeliest token, not logits.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Convert again if it exists.")] = False,
) -> None:
    """Convert a model to a bundle, and print the bundle's folder."""
    import ane_book
    from ane_book.conversion.quantize import scheme_warning

    recipe = _given(
        kv=kv, context=context, prefill=prefill, shard_limit=shard_limit,
        partition=partition, quant=quant, quant_head=quant_head,
    )  # fmt: skip
    if warning := scheme_warning(quant, quant_head):
        print(warning, file=sys.stderr)
    with progress_bar() as progress:
        bundle = ane_book.convert(
            model, out=out, source=source, argmax_output=argmax_output, force=force,
            progress=progress, **recipe,
        )  # fmt: skip
    print(bundle.path)


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help=f"{WEIGHTS}.")],
    shard_limit: ShardLimit = None,
    quant: Quant = None,
    quant_head: QuantHead = None,
    partition: Partition = None,
) -> None:
    """Show how a model would be cut, before anything is converted and without its weights."""
    from ane_book.conversion import plan as planning
    from ane_book.inspect import table

    recipe = planning.make_recipe(
        **_given(shard_limit=shard_limit, quant=quant, quant_head=quant_head, partition=partition)
    )
    print(table(planning.plan(planning.find_config(model), recipe).facts()))


@app.command()
def run(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")],
    system: System = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    precision: Precision = "fp16",
    kv: KV = None,
    context: Context = None,
    quant: Quant = None,
    backend: BackendName = "auto",
) -> None:
    """Answer one prompt; a reference model is converted on first use."""
    if prompt == "-":
        prompt = sys.stdin.read()
    session = _load(model, precision, backend, kv=kv, context=context, quant=quant)
    stream = session.stream(
        prompt, system=system, max_tokens=max_tokens,
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
    )  # fmt: skip
    print(statistics(_print_stream(stream)), file=sys.stderr)


@app.command()
def chat(
    model: Model,
    system: System = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    precision: Precision = "fp16",
    kv: KV = None,
    context: Context = None,
    quant: Quant = None,
    backend: BackendName = "auto",
) -> None:
    """Talk with a model, line by line; /reset begins anew, /quit or end of input ends."""
    session = _load(model, precision, backend, kv=kv, context=context, quant=quant)
    messages = []
    for line in typed_lines():
        if line == "/quit":
            break
        if line == "/reset":
            messages = []
            continue
        messages.append({"role": "user", "content": line})
        try:
            stream = session.stream(
                messages, system=system, max_tokens=max_tokens, reuse_cache=True,
                temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
            )  # fmt: skip
        except PromptTooLong as error:
            messages.pop()
            print(f"error: {error}; or begin anew with /reset", file=sys.stderr)
            continue
        messages.append({"role": "assistant", "content": _print_stream(stream).text})


@app.command("inspect")
def inspect_command(
    path: Annotated[Path, typer.Argument(help="A .mlpackage, or a bundle's folder.")],
    run: Annotated[bool, typer.Option("--run", help="Execute the package as well.")] = False,
    inputs: Inputs = None,
    function: FunctionName = None,
    precision: Precision = "fp16",
    seed: InputSeed = 0,
    out: Annotated[Path | None, typer.Option(help="Write the outputs as .npz.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a package or a bundle holds; with --run, what a package computes and needs."""
    from ane_book.inspect import inspect_path, report

    if not run and (inputs or function or out):
        raise typer.BadParameter("--inputs, --function and --out go with --run")
    facts = inspect_path(path)
    if run:
        from ane_book.execute import execute, execution_report

        facts["run"] = execute(path, function, inputs, precision, seed, out)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        parts = [report(facts), *([execution_report(facts["run"])] if run else [])]
        print(printable("\n\n".join(parts)))


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="A .mlpackage.")],
    b: Annotated[
        Path | None, typer.Argument(help="The reference; without it, A in single precision.")
    ] = None,
    inputs: Inputs = None,
    function: FunctionName = None,
    precision: Precision = "fp16",
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference, relative to the largest value in B.")
    ] = 0.01,
    seed: InputSeed = 0,
) -> None:
    """Run two packages, or one in half and single precision, and show where they part.

    Exit code 0: every output is equal within the tolerance; 1: it is not.
    """
    from ane_book.execute import compare_packages

    text, equal = compare_packages(a, b, function, inputs, precision, tolerance, seed)
    print(printable(text))
    raise typer.Exit(0 if equal else 1)


@app.command()
def doctor() -> None:
    """Say what this machine can do, and why not."""
    from ane_book import device
    from ane_book.inspect import table

    checks = device.describe()
    if find_spec("torch"):
        from ane_book.mil import native

        checks.append(("compiled kernels", *native.status()))
    words = {True: "yes", False: "no", None: ""}
    print(table([(check, words[ok], detail) for check, ok, detail in checks]))


def _given(**options) -> dict:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _load(model: str, precision: str, backend: str, **recipe: str | int | None) -> "Session":
    import ane_book

    named = None if backend == "auto" else backend
    with progress_bar() as progress:
        return ane_book.load(
            model,
            precision=precision,
            backend=named,
            progress=progress,
            **_given(**recipe),
        )


def _print_stream(stream: "Stream") -> "Result":
    """Print pieces as they come; the result of the whole.

    A terminal gets no control characters from a model; a file or a pipe gets its exact text.
    """
    shown = printable if sys.stdout.isatty() else str
    for piece in stream:
        print(shown(piece), end="", flush=True)
    print(flush=True)
    return stream.result


def statistics(result: "Result") -> str:
    """One line on how an answer came about."""
    rates = {"prefill": result.prefill_tps, "decode": result.decode_tps}
    shown = [f"{name} {rate:.1f} tokens/s" for name, rate in rates.items() if rate is not None]
    counts = f"{result.prompt_tokens} + {len(result.token_ids)} tokens"
    return ", ".join([counts, *shown, f"ended by {result.finish_reason}"])


def main() -> None:
    """The entry point: run a command and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a console without an emoji's encoding still answers
    code = 0
    try:
        app(prog_name="ane-book")
    except SystemExit as end:
        code = end.code
    except AneBookError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        print(f"error: {'; '.join(lines)}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
