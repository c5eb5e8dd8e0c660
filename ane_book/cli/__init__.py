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
from ane_book.cli.absent import absent, served
from ane_book.cli.chat import chat_command
from ane_book.cli.check import check
from ane_book.cli.demo import demo_command
from ane_book.cli.load import Opening, existing, handed, load, load_talker, path_of
from ane_book.cli.machine import cache_command, doctor_command
from ane_book.cli.models import models_command, plan_command
from ane_book.cli.quality import quality_command
from ane_book.cli.redact import redact
from ane_book.cli.report import report_command
from ane_book.cli.residency import residency_command
from ane_book.cli.terminal import RECIPE, SAMPLING, answer
from ane_book.errors import BY_LOGITS, InvalidInput
from mlprogram.cli import options as program_options
from mlprogram.cli.commands import command_line, told_to_end
from mlprogram.cli.diff import diff_command
from mlprogram.cli.explain import explain_command
from mlprogram.cli.graph import Check, Inputs, Precision, Shapes, convert_onnx
from mlprogram.cli.options import AsJson, FunctionName, InputSeed
from mlprogram.cli.place import place_command
from mlprogram.cli.programs import Out, Plan, save_command
from mlprogram.progress import progress_bar
from mlprogram.terminal import show
import typer

__all__ = ["app"]

# Everything heavy is imported by the command that needs it.


@options.takes(
    "Recipe", "kv", "state_write", "context", "quant", "quant_head", "prefill", "shard_limit",
    "partition", "argmax_output", "experts", "tiers", "verify", "functions", "silu", "form",
    "lora_slots",
)  # fmt: skip
def convert(
    model: options.Source,
    recipe: dict,
    source: Annotated[
        Path | None, typer.Option(help="A reference model's weights; random: made up.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the bundle; by default one in the cache.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Convert again if it exists.")] = False,
    precision: Precision = None,
    shape: Shapes = None,
    inputs: Inputs = None,
    check: Check = None,
    to: Annotated[
        Literal["coreml", "coreai"],
        typer.Option(help="coreai writes an .aimodel beside each package too."),
    ] = "coreml",
) -> None:
    """Convert a model to a bundle, or an .onnx graph to a package.

    Prints the path of what was made. A package is then run and held to ONNX Runtime; what came of
    it is on stderr, a line each for its precision and for fp32, and changes no exit code.
    """
    import ane_book

    if to == "coreai":
        from mlprogram.coreai import check_installed

        check_installed()  # before a conversion, not after it
    if _is_graph(model, out):
        if to == "coreai":
            raise InvalidInput("of a graph's package `ane-book save` makes an .aimodel")
        for name in options.given(source=source, **recipe):
            flag = name.replace("_", "-")
            raise InvalidInput(f"--{flag} is of language models, and {model} is an ONNX graph")
        convert_onnx(model, out, force, precision, shape, check, inputs)
        return
    if any(value is not None for value in (precision, shape, inputs, check)):
        raise InvalidInput("--precision, --shape, --inputs and --check are of .onnx graphs")
    with progress_bar() as progress, told_to_end():
        bundle = ane_book.convert(
            model, out=out, source=source, force=force, progress=progress, **recipe
        )
    if to == "coreai":
        from ane_book.conversion.assets import add_assets

        add_assets(bundle)
    print(bundle.path)


def _is_graph(model: str, out: Path | None) -> bool:
    """Whether to convert a model to a single package: an .onnx graph that is not ONNX Runtime
    GenAI's, or whose output is named .mlpackage (a bundle is a folder)."""
    from ane_book.weights.onnx import GENAI

    if not model.endswith(".onnx"):
        return False
    named = out is not None and out.suffix == ".mlpackage"
    return named or not Path(model).with_name(GENAI).exists()


@options.takes("Recipe", *RECIPE)
@options.takes("Sampling", *SAMPLING, "json_schema", "regex")
def run(
    model: options.Model,
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")],
    recipe: dict,
    sampling: dict,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="The prompt is token ids: 151644 8948 198.")
    ] = False,
    draft: options.Draft = None,
    adapter: options.Adapter = None,
    precision: program_options.Precision = "fp16",
    backend: options.BackendName = "auto",
    force: options.Force = False,
    as_json: AsJson = False,
) -> None:
    """Answer one prompt; a reference model is converted on first use."""
    if prompt == "-":
        prompt = sys.stdin.read()
    asked = options.token_ids(prompt) if tokens else prompt
    how = Opening(precision=precision, backend=backend, force=force)
    sampling |= {"draft": draft}
    if "json_schema" in sampling:
        sampling["json_schema"] = options.schema(sampling["json_schema"])
    session = load_talker(model, how, adapter, **recipe)
    if as_json:
        show(lambda: asdict(session.generate(asked, **sampling)), str, as_json)
    else:
        answer(session, asked, sampling)


@options.takes("Recipe", "quant")
def embed(
    texts: Annotated[list[str], typer.Argument(help="Texts; - stands for the lines of stdin.")],
    recipe: dict,
    model: options.Encoder = "all-minilm-l6-v2",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each: text and embedding.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a text that is too long, instead of cutting.")
    ] = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="What stands before each text: a name of the model's prompts, or a text.  "
            "[default: the model's own default]"
        ),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(min=1, help="Cut vectors to so many numbers, and scale them to length 1."),
    ] = None,
    precision: program_options.Precision = "fp16",
    context: options.TextLength = None,
    backend: options.BackendName = "auto",
    force: options.Force = False,
) -> None:
    """Make vectors of texts; print the cosine of each to the first."""
    from ane_book.cli.vectors import print_vectors

    how = Opening(precision=precision, backend=backend, force=force)
    embedder = load(model, "embedding", how, context=context, **recipe)
    print_vectors(embedder, texts, as_json, strict, prompt, dimensions)


def inspect_command(
    path: options.Package,
    run: Annotated[bool, typer.Option("--run", help="Execute the package as well.")] = False,
    plan: Plan = False,
    inputs: program_options.Inputs = None,
    function: FunctionName = None,
    precision: program_options.Precision = "fp16",
    seed: InputSeed = 0,
    out: Out = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every byte of a bundle with what was written.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a package or a bundle holds.

    With --run, also what a package computes and needs; with --plan, how.
    """
    from ane_book.evidence.inspect import inspect_path, refuse_bundle, report

    if not run and (inputs or out or (function and not plan)):
        raise typer.BadParameter("--inputs, --function and --out go with --run")
    place = path_of(path)
    verified = _verify(place) if verify else {}
    if run or plan:
        refuse_bundle(place)
    facts, texts = inspect_path(place) | verified, []
    if run:
        from mlprogram.execute import execute, execution_report

        facts["run"] = execute(place, function, inputs, precision, seed, out)
        texts.append(execution_report(facts["run"]))
    if plan:
        from mlprogram.kernel_report import plan_report, planned

        facts["plan"] = planned(place, function, precision)
        texts.append(plan_report(facts["plan"]))
    show(lambda: facts, lambda: "\n\n".join([report(facts), *texts]), as_json)


def _verify(path: Path) -> dict[str, int]:
    """The number of files of a bundle; raises if one is not as it was written."""
    from ane_book.bundle import Bundle

    if not (path / "manifest.json").exists():
        raise InvalidInput(
            f"--verify takes the folder of a bundle, and {path} has no manifest.json"
        )
    bundle = Bundle.open(path)
    bundle.verify()
    return {"verified": len(bundle.manifest.files)}


COMMANDS: dict[str, Callable] = {
    "convert": convert,
    "run": run,
    "chat": chat_command,
    "embed": embed,
    "redact": redact,
    "demo": demo_command,
    "models": models_command,
    "plan": plan_command,
    "inspect": inspect_command,
    "check": check,
    "diff": handed(diff_command, existing, a=None, b=None),
    "place": handed(place_command, path_of, path=options.Packages),
    "residency": residency_command,
    "quality": quality_command,
    "report": report_command,
    "save": handed(save_command, existing, source=None),
    "explain": explain_command,
    "cache": cache_command,
    "doctor": doctor_command,
}
app = command_line(
    "Language models for Apple's Neural Engine: convert, run and look inside, on any machine.",
    f"ane-book {__version__}",
    COMMANDS | served(),
    absent() | {name: f"{name}: {BY_LOGITS}" for name in ("choose", "rerank")},
    options.with_taken,
)
