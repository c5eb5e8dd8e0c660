"""`ane-book demo`: a few answers with the evidence for them, to watch or to record."""

from contextlib import closing
from shlex import quote
import sys
from typing import TYPE_CHECKING

from ane_book import __version__
from ane_book.cli import options
from ane_book.cli.load import load
from ane_book.cli.terminal import RECIPE, shown, statistics
from ane_book.errors import printable
from mlprogram import machine
from mlprogram.cli.options import Precision

if TYPE_CHECKING:
    from ane_book.runtime import Session
    from rich.console import Console

PROMPTS = (
    "What is the capital of France?",
    "What is the capital of Italy?",
    "How many days are in a week?",
)
TOKENS = 40  # the most tokens of an answer
HEADING = 24  # the columns of a line's heading
COLOURS = {"passed": "green", "failed": "red", "unmeasured": "yellow"}


@options.takes("Recipe", *RECIPE)
def demo_command(
    recipe: dict,
    model: options.Model = "smollm2-135m-instruct",
    precision: Precision = "fp16",
    backend: options.BackendName = "auto",
) -> None:
    """Answer three prompts, with the evidence beside the answers.

    Where it runs, what runs with its hash, the four levels of proof, speed, and the next tokens
    beside those that PyTorch wrote into the bundle. (`make demo` is another one: of redaction.)
    """
    from rich.console import Console

    session = load(model, "text-generation", precision, backend, **recipe)
    present(session, Console(file=sys.stdout, highlight=False), model)


def present(session: "Session", console: "Console", model: str = "BUNDLE") -> None:
    """Show a session at work. A console that records gets each answer at once, wrapped.

    model: how a command names the bundle, for those that measure what nobody has.
    """
    from ane_book.bundle.evidence import LEVELS

    bundle = session.bundle
    _title(console, f"{bundle.manifest.name}, ane-book {__version__}")
    _facts(console, [("runs on", where(session)), ("engine", _engine(session))])
    _title(console, "what runs")
    bundle.verify()  # raises where a byte is not as it was written
    _facts(console, _packages(session))
    _title(console, "what is known of it")
    for name, level in bundle.evidence.levels.items():
        status = f"{level.status}: {level.reason.replace('BUNDLE', quote(model))}"
        _facts(console, [(f"{name} {LEVELS[name]}", status)], COLOURS[level.status])
    for prompt in PROMPTS:
        console.print()
        _answer(session, console, prompt)
    _title(console, "beside PyTorch")
    equal, total = golden_agreement(session)
    colour = "green" if equal == total else "yellow"
    text = f"{equal} of {total} next tokens are those of golden.npz, which PyTorch computed"
    _facts(console, [("tokens", text)], colour)


def where(session: "Session") -> str:
    """The backend, with its precision or compute units, and the machine."""
    from ane_book.runtime.backends import CoreMLBackend

    backend = session.backend
    if isinstance(backend, CoreMLBackend):
        return f"Core ML, compute units {backend.compute_units}, {machine.chip()}"
    precision = getattr(backend, "precision", "")
    return f"the book's executor, {precision}, on the CPU ({machine.chip()})"


def _engine(session: "Session") -> str:
    there, why = machine.neural_engine()
    if not there:
        return f"unmeasured: no Neural Engine here ({why})"
    if session.backend.name != "coreml":
        return "not asked: the executor runs on the CPU"
    return f"{why}; L2 below says whether it was measured"


def _packages(session: "Session") -> list[tuple[str, str]]:
    """The bundle's seal, and the bytes of its packages, each with the hash of its weights."""
    manifest = session.bundle.manifest
    rows = [
        ("bundle", f"seal {manifest.seal[:16]}, {len(manifest.files)} files as they were written")
    ]
    for package in dict.fromkeys(part.package for part in manifest.packages):
        files = [name for name in manifest.files if name.startswith(f"{package}/")]
        largest = max(files, key=lambda name: manifest.files[name])
        label = largest.removeprefix(f"{package}/Data/com.apple.CoreML/")
        size = f"{manifest.files[largest] / 1e6:,.1f} MB"
        rows.append((package, f"{label}, {size}, sha256 {manifest.sha256[largest][:16]}"))
    return rows


def _answer(session: "Session", console: "Console", prompt: str) -> None:
    console.print(f"> {prompt}", style="bold", markup=False)
    with closing(session.stream(prompt, max_tokens=TOKENS)) as stream:
        if console.record:
            console.print("".join(map(shown, stream)), markup=False)
        else:
            for piece in stream:
                console.out(shown(piece), end="", highlight=False)
                console.file.flush()
            console.print()
    console.print(statistics(stream.finish()), style="cyan", markup=False)


def golden_agreement(session: "Session") -> tuple[int, int]:
    """How many next tokens after the bundle's golden text equal PyTorch's, and of how many."""
    golden = session.bundle.golden()
    tokens, expected = golden["tokens"][: session.context], golden["argmax"][: session.context]
    session.reset()
    if session.bundle.manifest.argmax_output:
        found = [session.decode(token) for token in tokens.tolist()]
    else:
        found = session.logits(tokens).argmax(axis=1).tolist()
    session.reset()
    return sum(a == b for a, b in zip(found, expected.tolist(), strict=True)), len(tokens)


def _title(console: "Console", text: str) -> None:
    console.print(f"\n{printable(text)}", style="bold", markup=False)


def _facts(console: "Console", rows: list[tuple[str, str]], colour: str | None = None) -> None:
    """Print headings with their text beside them."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=HEADING, style="dim", overflow="fold")
    grid.add_column(style=colour, overflow="fold")
    for heading, text in rows:
        grid.add_row(Text(printable(heading)), Text(printable(text)))
    console.print(grid)
