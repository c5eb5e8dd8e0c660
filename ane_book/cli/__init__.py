"""The commands of `ane-book`.

Answers and tables go to stdout; progress, statistics and errors to stderr, so that output can be
piped. `ane_book.__main__` turns errors into messages and exit codes.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
import sys
from typing import Annotated, Literal

from ane_book import __version__
from ane_book.cli import options
from ane_book.cli.absent import served
from ane_book.cli.chat import chat_command
from ane_book.cli.check import check
from ane_book.cli.demo import demo_command
from ane_book.cli.load import handed, load, path_of
from ane_book.cli.machine import cache_command, doctor_command
from ane_book.cli.models import models_command, plan_command
from ane_book.cli.prefill import PromptCacheFile, kept_in, prefill_command
from ane_book.cli.quality import quality_command
from ane_book.cli.redact import redact
from ane_book.cli.residency import residency_command
from ane_book.cli.terminal import RECIPE, SAMPLING, shown, statistics
from ane_book.cli.vectors import embed
from mlprogram.cli import options as program_options
from mlprogram.cli.commands import command_line, told_to_end
from mlprogram.cli.diff import diff_command
from mlprogram.cli.explain import explain_command
from mlprogram.cli.options import AsJson, Why
from mlprogram.cli.place import place_command
from mlprogram.cli.programs import save_command
from mlprogram.progress import progress_bar
from mlprogram.terminal import show
import typer

__all__ = ["app"]

# Everything heavy is imported by the command that needs it.


@options.takes(
    "Recipe", "kv", "state_write", "context", "quant", "quant_head", "prefill", "shard_limit",
    "partition", "argmax_output", "experts", "tiers", "verify", "functions", "silu", "form",
    "lora_slots", whole=True,
)  # fmt: skip
def convert(
    model: options.Weights,
    recipe: dict,
    source: Annotated[
        Path | None,
        typer.Option(help="For a reference model: the path of its weights, or random."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the bundle; by default one in the cache."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Convert again if it exists.")] = False,
    to: Annotated[
        Literal["coreml", "coreai"],
        typer.Option(help="coreai writes an .aimodel beside each package too."),
    ] = "coreml",
) -> None:
    """Convert a model to a bundle, and print the path of its folder."""
    import ane_book

    if to == "coreai":
        from mlprogram.coreai import check_installed

        check_installed()  # before a conversion, not after it
    with progress_bar() as progress, told_to_end():
        bundle = ane_book.convert(
            model, out=out, source=source, force=force, progress=progress, **recipe
        )
    if to == "coreai":
        from ane_book.conversion.assets import add_assets

        add_assets(bundle)
    print(bundle.path)


@options.takes("Recipe", *RECIPE)
@options.takes("Sampling", *SAMPLING, "json_schema", "regex")
def run(
    model: options.Model,
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")],
    recipe: dict,
    sampling: dict,
    draft: options.Draft = None,
    adapter: options.Adapter = None,
    prompt_cache: PromptCacheFile = None,
    precision: program_options.Precision = "fp16",
    backend: options.BackendName = "auto",
    as_json: AsJson = False,
) -> None:
    """Answer one prompt; a reference model is converted on first use."""
    if prompt == "-":
        prompt = sys.stdin.read()
    sampling |= {"draft": draft}
    if "json_schema" in sampling:
        sampling["json_schema"] = options.schema(sampling["json_schema"])
    session = load(model, "text-generation", precision, backend, **recipe)
    if adapter is not None:
        session.use(adapter)
    with kept_in(session, prompt_cache, prompt, sampling) as how:
        if as_json:
            show(lambda: asdict(session.generate(prompt, **sampling, **how)), str, as_json)
            return
        stream = session.stream(prompt, **sampling, **how)
        for piece in stream:
            print(shown(piece), end="", flush=True)
        print(flush=True)
    print(statistics(stream.finish()), file=sys.stderr)


def inspect_command(
    path: options.Package,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Compare every byte of a bundle with its manifest.")
    ] = False,
    why: Why = False,
    as_json: AsJson = False,
) -> None:
    """Show what a package or a bundle holds."""
    from ane_book.evidence.inspect import inspect_path, report

    place = path_of(path)
    facts = inspect_path(place)
    if checksums:
        from ane_book.bundle import Bundle

        bundle = Bundle.open(place)
        bundle.verify()
        facts["verified"] = len(bundle.manifest.files)
    show(lambda: facts, lambda: report(facts, why), as_json)


#: Commands by the heading that --help lists them under.
COMMANDS: dict[str, dict[str, Callable]] = {
    "Convert": {
        "models": models_command, "plan": plan_command, "convert": convert, "save": save_command,
    },
    "Run": {
        "run": run, "chat": chat_command, "prefill": prefill_command, "embed": embed,
        "redact": redact, "demo": demo_command,
    },
    "Evidence": {
        "check": check, "quality": quality_command, "place": handed(place_command),
        "residency": residency_command, "inspect": inspect_command, "diff": diff_command,
    },
    "Upkeep": {"explain": explain_command, "cache": cache_command, "doctor": doctor_command},
}  # fmt: skip
#: Commands and options that are gone, and what takes their place.
GONE = {
    "run --tokens": "session.generate(ids) in Python takes token ids",
    "chat --history": "no line that is typed is kept in a file",
    "chat --no-history": "no line that is typed is kept in a file",
    "demo --raw": "session.encode(prompt) in Python gives what the model gets",
    "demo --verbose": "`ane-book inspect BUNDLE` lists the functions of its packages",
    "redact --dry-run": "--json prints the spans, each with its text",
    "cache --limit": "`ane-book cache` lists the last used first, and delete takes names",
    "report": "`mlprogram row` measures this Mac in two minutes and says how to hand that in",
    "inspect --run": "`mlprogram run PACKAGE` runs it, with --inputs, --function and --out",
    "inspect --plan": "`mlprogram inspect PACKAGE --kernels` shows it",
    "inspect --verify": "--checksums does it; --verify is of `convert`",
    "prefill --form": "--for names who goes on from the file; --form is of `convert`",
    **dict.fromkeys(("convert --limit", "plan --limit"), "--shard-limit is the whole word"),
    **dict.fromkeys(("convert --max-seq-len", "plan --max-seq-len"), "--context says how many"),
    **{
        f"{name} --force": "`ane_book.load(FOLDER, force=True)` in Python opens what failed parity"
        for name in ("run", "chat", "prefill", "embed", "redact", "demo")
    },
    "check --numerics": "`ane-book diff PACKAGE --precision ane` says where it parts",
}
_serve, _absent, _gone = served()
app = command_line(
    "Language models for Apple's Neural Engine: convert, run and look inside, on any machine.\n\n"
    "For any other network, see `mlprogram --help`.",
    f"ane-book {__version__}",
    COMMANDS | {"Run": COMMANDS["Run"] | _serve},
    _absent,
    GONE | _gone,
)
