"""Quality (L3): measure what a bundle loses on two texts, compared with the unquantised model.

A bundle that is not quantised is compared with itself in single precision, which parity (L1)
compares with PyTorch; a quantised one with an unquantised conversion of its source. A fault in how
this library reads the weights is in both, so either can be compared with `transformers` instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite, isnan
from pathlib import Path
import tempfile

from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Level, level, no_level
from ane_book.conversion import convert
from ane_book.conversion.rebuild import source_of
from ane_book.evidence import loss, original
from ane_book.evidence.loss import Logits
from ane_book.runtime import Session
from ane_book.runtime.backends import MILBackend

MOST = 0.1  # the share by which perplexity may grow
TOKENS = 1024  # of each text


def check_quality(
    bundle: Bundle | str | Path,
    source: str | Path | None = None,
    tokens: int = TOKENS,
    most: float = MOST,
    independent: bool = False,
) -> Level:
    """Measure the evidence level L3 of a bundle with the executor.

    source: the weights that it was made of; if None, those of a reference model are looked for on
    this machine. tokens: of each text, from its beginning. most: the share by which perplexity may
    grow. independent: compare with the model of `transformers` in float32, which takes 4 bytes of
    memory per weight. Raises InvalidBundle, InvalidInput for a source with other weights, and
    UnsupportedModel without `transformers`, or if it has no such model.
    """
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    if bundle.manifest.vectors is not None:
        return no_level(
            "texts are compared by what comes next, and this model makes vectors or scores"
        )
    if bundle.manifest.argmax_output:
        return no_level("converted with argmax_output, it gives tokens and no logits")
    needed = independent or not bundle.recipe.is_plain
    weights = source_of(bundle, source) if needed or source else None
    if needed and weights is None:
        return no_level("the weights that it was made of are not at hand; --source names them")
    if independent and weights is not None:
        whole = original.model(weights.config(), original.weights(weights))
        against = "transformers' model of its source's weights, in float32"
        return _compare(bundle, original.logits(whole), against, tokens, most, independent)
    plain = "its own weights" if bundle.recipe.is_plain else "the same model, not quantised,"
    with _reference(bundle, source) as reference:
        against = f"{plain} in single precision"
        return _compare(bundle, loss.fresh(reference), against, tokens, most)


@contextmanager
def _reference(bundle: Bundle, source: str | Path | None) -> Iterator[Session]:
    """The same model, not quantised, in single precision."""
    if bundle.recipe.is_plain:
        yield Session(bundle, backend=MILBackend("fp32"), force=True)
        return
    own = {name: getattr(bundle.recipe, name) for name in ("context", "prefill", "shard_limit")}
    with tempfile.TemporaryDirectory(prefix="ane-book-") as folder:
        model = str(source) if source else bundle.manifest.name
        whole = convert(model, out=Path(folder) / "reference", **own)
        yield Session(whole, backend=MILBackend("fp32"))


def _compare(
    bundle: Bundle,
    reference: Logits,
    against: str,
    tokens: int,
    most: float,
    independent: bool = False,
) -> Level:
    """Compare on both texts. against: what the reference is, in words."""
    found = Session(bundle, backend=MILBackend(), force=True)
    window = min(256, found.context)
    figures: dict[str, float] = {"independent": independent}
    results: dict[str, loss.Loss] = {}
    for name in loss.TEXTS:
        ids = found.tokenizer.encode(loss.text(name), add_special_tokens=False).ids[:tokens]
        results[name] = loss.measure(loss.fresh(found), reference, ids, window)
        fields = asdict(results[name]).items()
        figures |= {f"{name}_{key}": value for key, value in fields if isfinite(value)}
    vocabulary = found.tokenizer.get_vocab_size()
    # Left out: what the original predicts no better than equal chances of all tokens would.
    judged = {
        name: one
        for name, one in results.items()
        if not one.perplexity / (1 + one.change) >= vocabulary  # NaN is judged
    }
    if not judged:
        return no_level(
            f"the original guesses no better than chance among {vocabulary:,} tokens on either "
            "text, so a change of its perplexity says nothing; the weights may be untrained"
        )
    # What is no number is the worst there is.
    name, worst = max(judged.items(), key=lambda each: (isnan(each[1].change), each[1].change))
    which = "the worse of two texts" if len(judged) == 2 else "the one it does not only guess"
    reason = (
        f"against {against}; {name}, {which}: perplexity {worst.perplexity:.4g}, "
        f"{worst.change:+.2%} (standard error {worst.change_error:.2%}); {worst.agreement:.1%} of "
        "the likeliest tokens are equal"
    )
    return level(worst.change <= most, reason, figures)
