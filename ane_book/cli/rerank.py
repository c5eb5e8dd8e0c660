"""`ane-book rerank`: documents by how relevant they are to a query."""

from dataclasses import asdict
import sys
from typing import TYPE_CHECKING, Annotated

from ane_book.cli import options
from ane_book.cli.load import Opening, load, task_of
from ane_book.errors import printable
from mlprogram.cli.options import AsJson, Precision
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from ane_book.runtime.reranker import Ranking


@options.takes("Recipe", "quant")
def rerank(
    query: Annotated[str, typer.Argument(help="What is asked.")],
    documents: Annotated[
        list[str],
        typer.Argument(help="Texts; - stands for the lines of stdin.", metavar="DOCUMENT..."),
    ],
    recipe: dict,
    model: options.Encoder,
    top_n: Annotated[int | None, typer.Option(min=1, help="Only so many, the best.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a text that is too long, instead of cutting.")
    ] = False,
    precision: Precision = "fp16",
    context: options.TextLength = None,
    backend: options.BackendName = "auto",
    force: options.Force = False,
    as_json: AsJson = False,
) -> None:
    """Score documents for a query; print the best first.

    By a reranker, or by a model that generates text, which says yes or no as Qwen3-Reranker does.
    """
    how = Opening(precision=precision, backend=backend, force=force)
    reranker: Ranking
    if task_of(model) == "text-generation":  # one that says yes or no
        from ane_book.runtime import YesNoReranker

        reranker = YesNoReranker(load(model, "text-generation", how, context=context, **recipe))
    else:
        reranker = load(model, "reranking", how, context=context, **recipe)
    texts: list[str] = []
    for word in documents:
        texts += [line.removesuffix("\n") for line in sys.stdin] if word == "-" else [word]
    found = reranker.rank(query, texts, top_n, cut=not strict)
    show(
        lambda: [asdict(one) | {"document": texts[one.index]} for one in found],
        lambda: "\n".join(f"{n.relevance_score:8.4f}  {printable(texts[n.index])}" for n in found),
        as_json,
    )
