"""The commands of `ane-book`: the library from a terminal.

Answers and tables go to stdout; progress, statistics and errors to stderr, so that output can be
piped. Errors and exit codes are the business of `ane_book.__main__`.
"""

from importlib.util import find_spec
import json
from pathlib import Path
import sys
from typing import Annotated, Literal

from ane_book import __version__
from ane_book.cli import options
from ane_book.cli.load import given, load
from ane_book.cli.talk import answer, converse
from ane_book.errors import InvalidInput, printable
from ane_book.progress import progress_bar
import typer

__all__ = ["app"]

# Everything heavy is imported by the command that needs it.

TEXT = "text-generation"

app = typer.Typer(
    help="Language models for Apple's Neural Engine: convert, run and look inside, on any machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ane-book {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """What goes before every command."""


@app.command()
def models() -> None:
    """List the reference models: weights, recipe, evidence, figures."""
    import ane_book
    from ane_book.evidence.inspect import table

    known = ane_book.reference_models().values()
    print(table([(model.name, model.size, model.license, model.taught) for model in known]))
    for model in known:
        print(f"\n{model.name}\n{table(model.facts(), indent=2)}")


@app.command()
def convert(
    model: options.Weights,
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

    recipe = given(
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
    model: options.Weights,
    shard_limit: options.ShardLimit = None,
    quant: options.Quant = None,
    quant_head: options.QuantHead = None,
    partition: options.Partition = None,
) -> None:
    """Show how a model would be cut, without its weights."""
    from ane_book.conversion import plan as planning
    from ane_book.conversion.recipe import make_recipe
    from ane_book.evidence.inspect import table

    config = planning.find_config(model)
    recipe = make_recipe(
        config,
        **given(shard_limit=shard_limit, quant=quant, quant_head=quant_head, partition=partition),
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
    session = load(model, TEXT, precision, backend, kv=kv, context=context, quant=quant)
    how = {
        "system": system, "max_tokens": max_tokens, "temperature": temperature,
        "top_k": top_k, "top_p": top_p, "seed": seed,
    }  # fmt: skip
    answer(session, prompt, how)


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
    """Talk with a model, line by line.

    /reset begins anew, /quit or end of input ends, Ctrl-C stops an answer.
    """
    session = load(model, TEXT, precision, backend, kv=kv, context=context, quant=quant)
    how = {
        "system": system, "max_tokens": max_tokens, "temperature": temperature,
        "top_k": top_k, "top_p": top_p, "seed": seed,
    }  # fmt: skip
    converse(session, how)


@app.command()
def embed(
    texts: Annotated[list[str], typer.Argument(help="Texts; - stands for the lines of stdin.")],
    model: options.Encoder = "all-minilm-l6-v2",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each: text and embedding.")
    ] = False,
    precision: options.Precision = "fp16",
    context: options.TextLength = None,
    quant: options.Quant = None,
    backend: options.BackendName = "auto",
) -> None:
    """Make vectors of texts; print the cosine of each to the first."""
    from ane_book.cli.vectors import print_vectors

    embedder = load(model, "embedding", precision, backend, context=context, quant=quant)
    print_vectors(embedder, texts, as_json)


@app.command("inspect")
def inspect_command(
    path: Annotated[Path, typer.Argument(help="A package, .mlmodelc, or bundle's folder.")],
    run: Annotated[bool, typer.Option("--run", help="Execute the package as well.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show which kernel each op got, and why not others.")
    ] = False,
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
    """Show what a package or a bundle holds.

    With --run, also what a package computes and needs; with --plan, how.
    """
    from ane_book.evidence.inspect import inspect_path, report

    if not run and (inputs or out or (function and not plan)):
        raise typer.BadParameter("--inputs, --function and --out go with --run")
    verified = _verify(path) if verify else {}
    facts, texts = inspect_path(path) | verified, []
    if run:
        from ane_book.evidence.execute import execute, execution_report

        facts["run"] = execute(path, function, inputs, precision, seed, out)
        texts.append(execution_report(facts["run"]))
    if plan:
        from ane_book.evidence.planned import plan_report, planned

        facts["plan"] = planned(path, function, precision)
        texts.append(plan_report(facts["plan"]))
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        print(printable("\n\n".join([report(facts), *texts])))


def _verify(path: Path) -> dict[str, int]:
    """How many files of a bundle are as they were written; raises where one is not."""
    from ane_book.bundle import Bundle

    if not (path / "manifest.json").exists():
        raise InvalidInput(
            f"--verify takes the folder of a bundle, and {path} has no manifest.json"
        )
    bundle = Bundle.open(path)
    bundle.verify()
    return {"verified": len(bundle.manifest.files)}


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="A .mlpackage or .mlmodelc.")],
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
    """Show where two packages part, or one in fp16 and fp32.

    Exit code 0: every output is equal within the tolerance; 1: it is not.
    """
    from ane_book.evidence.execute import compare_packages

    text, equal = compare_packages(a, b, function, inputs, precision, tolerance, seed)
    print(printable(text))
    raise typer.Exit(0 if equal else 1)


@app.command("save")
def save_command(
    source: Annotated[Path, typer.Argument(help="A .mlpackage, .mlmodelc or .mlmodel.")],
    target: Annotated[Path, typer.Argument(help="What to write: a .mlpackage or a .mlmodelc.")],
) -> None:
    """Turn a compiled model into a package, or the other way round."""
    from ane_book.mil import save

    save(source, target)
    print(target)


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
    from ane_book.bundle import cache
    from ane_book.evidence.inspect import table

    if (action == "delete") != bool(names or everything):
        raise typer.BadParameter("delete takes names, or --all; list takes neither")
    if action == "delete":
        removed = cache.delete(names or [entry.path.name for entry in cache.entries()])
    elif limit is not None:
        from ane_book.conversion.plan.shards import parse_bytes

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
    from ane_book.evidence.inspect import table

    checks = device.describe()
    if find_spec("torch"):
        from ane_book.mil.kernels import native

        checks.append(("compiled kernels", *native.status()))
    words = {True: "yes", False: "no", None: ""}
    print(table([(check, words[ok], detail) for check, ok, detail in checks]))
