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
import warnings

from ane_book import options
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
    model: Annotated[str, typer.Argument(help=f"{options.WEIGHTS}.")],
    source: Annotated[
        Path | None, typer.Option(help="A reference model's weights; random: made up.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the bundle; by default one in the cache.")
    ] = None,
    kv: options.KV = None,
    context: options.Context = None,
    quant: options.Quant = None,
    quant_head: options.QuantHead = None,
    prefill: options.Prefill = None,
    shard_limit: options.ShardLimit = None,
    partition: options.Partition = None,
    argmax_output: Annotated[
        bool, typer.Option("--argmax-output", help="Return the likeliest token, not logits.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Convert again if it exists.")] = False,
) -> None:
    """Convert a model to a bundle, and print the bundle's folder."""
    import ane_book

    recipe = _given(
        kv=kv, context=context, prefill=prefill, shard_limit=shard_limit,
        partition=partition, quant=quant, quant_head=quant_head,
    )  # fmt: skip
    with progress_bar() as progress:
        bundle = ane_book.convert(
            model, out=out, source=source, argmax_output=argmax_output, force=force,
            progress=progress, **recipe,
        )  # fmt: skip
    print(bundle.path)


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help=f"{options.WEIGHTS}.")],
    shard_limit: options.ShardLimit = None,
    quant: options.Quant = None,
    quant_head: options.QuantHead = None,
    partition: options.Partition = None,
) -> None:
    """Show how a model would be cut, before anything is converted and without its weights."""
    from ane_book.conversion import plan as planning
    from ane_book.conversion.recipe import make_recipe
    from ane_book.inspect import table

    config = planning.find_config(model)
    recipe = make_recipe(
        config,
        **_given(shard_limit=shard_limit, quant=quant, quant_head=quant_head, partition=partition),
    )
    print(table(planning.plan(config, recipe).facts()))


@app.command()
def run(
    model: options.Model,
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")],
    system: options.System = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    precision: options.Precision = "fp16",
    kv: options.KV = None,
    context: options.Context = None,
    quant: options.Quant = None,
    backend: options.BackendName = "auto",
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
    model: options.Model,
    system: options.System = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    precision: options.Precision = "fp16",
    kv: options.KV = None,
    context: options.Context = None,
    quant: options.Quant = None,
    backend: options.BackendName = "auto",
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
    inputs: options.Inputs = None,
    function: options.FunctionName = None,
    precision: options.Precision = "fp16",
    seed: options.InputSeed = 0,
    out: Annotated[Path | None, typer.Option(help="Write the outputs as .npz.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every byte of a bundle with what was written.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a package or a bundle holds; with --run, what a package computes and needs."""
    from ane_book.bundle import Bundle
    from ane_book.inspect import inspect_path, report

    if not run and (inputs or function or out):
        raise typer.BadParameter("--inputs, --function and --out go with --run")
    if verify:
        Bundle.open(path).verify()
    facts = inspect_path(path)
    if verify:
        facts["verified"] = len(facts["files"])
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
    inputs: options.Inputs = None,
    function: options.FunctionName = None,
    precision: options.Precision = "fp16",
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference, relative to the largest value in B.")
    ] = 0.01,
    seed: options.InputSeed = 0,
) -> None:
    """Run two packages, or one in half and single precision, and show where they part.

    Exit code 0: every output is equal within the tolerance; 1: it is not.
    """
    from ane_book.execute import compare_packages

    text, equal = compare_packages(a, b, function, inputs, precision, tolerance, seed)
    print(printable(text))
    raise typer.Exit(0 if equal else 1)


@app.command("cache")
def cache_command(
    action: Annotated[Literal["list", "delete"], typer.Argument(help="list or delete.")] = "list",
    names: Annotated[list[str] | None, typer.Argument(help="What to delete.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all.")] = False,
    limit: Annotated[
        str | None,
        typer.Option(help="Delete what was not used for longest, until so much is left: 10GB."),
    ] = None,
) -> None:
    """List the bundles that are kept in the cache, or delete some."""
    from ane_book import cache
    from ane_book.inspect import table

    if (action == "delete") != bool(names or everything):
        raise typer.BadParameter("delete takes names, or --all; list takes neither")
    if action == "delete":
        removed = cache.delete(names or [entry.path.name for entry in cache.entries()])
    elif limit is not None:
        from ane_book.conversion.shards import parse_bytes

        removed = cache.evict(parse_bytes(limit))
    else:
        print(table(cache.facts()))
        return
    for entry in removed:
        print(f"deleted {entry.path.name}, {entry.bytes:,} bytes")


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
    """Print pieces as they come, on a terminal without control characters; returns the result."""
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
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
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
