"""`ane-book quality`: measure what a bundle loses compared with the unquantised model."""

from math import nan
from typing import TYPE_CHECKING, Annotated

from ane_book.cli import options
from ane_book.cli.load import path_of, source_of
from ane_book.cli.output import keep
from mlprogram.cli.options import AsJson
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from ane_book.bundle.evidence import Level

UNMEASURED = 3  # the exit code if it cannot be measured

#: The columns of the report, and how they are written.
FIGURES = {
    "tokens": "{:,.0f} tokens",
    "perplexity": "{:.4g}",
    "change": "{:+.2%}",
    "agreement": "{:.1%}",
    "divergence": "{:.2g} nats",
}


def quality_command(
    bundle: Annotated[
        str,
        typer.Argument(
            help="A bundle's folder, or a reference model or weights, of which it is the bundle in "
            "the cache.",
            autocompletion=options.names,
        ),
    ],
    source: Annotated[
        str | None, typer.Option(help="The weights that it was made of, if it is quantised.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=64, help="Of each of two texts.")] = 1024,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent",
            help="Against transformers' model of these weights, not this library's; 4 bytes of "
            "memory a weight.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure how much worse a bundle is than its model, on two texts.

    Perplexity, agreement and divergence, against the model before it was quantised. With
    --independent it is transformers that computes, which also tells what this library's own
    port of the model got wrong.

    It keeps the answer in its evidence.json, as L3, unless a stronger one is there. Exit code 0:
    perplexity is at most 10 % larger than before it was quantised; 1: more; 3: unmeasured, also
    where the original only guesses.
    """
    from ane_book.bundle import Bundle
    from ane_book.evidence.quality import check_quality

    path = path_of(bundle)
    opened = Bundle.open(path)
    source = source or source_of(bundle, path)
    level = check_quality(opened, source, tokens, independent=independent)
    show(lambda: level.model_dump(mode="json"), lambda: _report(level), as_json)
    keep(opened, "L3", level)
    raise typer.Exit({"passed": 0, "failed": 1, "unmeasured": UNMEASURED}[level.status])


def _report(level: "Level") -> str:
    """The verdict, and the figures of each text."""
    from ane_book.evidence.loss import TEXTS
    from mlprogram.tables import table

    verdict = f"L3 quality {level.status}: {level.reason}"
    if not level.figures:
        return verdict
    rows: list[tuple[str, ...]] = [
        ("text", "predicted", "perplexity", "change", "same likeliest", "divergence", "")
    ]
    for name, what in TEXTS.items():
        row = {key: level.figures.get(f"{name}_{key}", nan) for key in FIGURES}
        rows.append((name, *(form.format(row[key]) for key, form in FIGURES.items()), what))
    return f"{verdict}\n\n{table(rows)}"
