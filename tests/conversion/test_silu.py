"""The form of silu by tanh: the same numbers in single precision, and none of the engine's op."""

from collections import Counter

from _long import long_but
from _tiny import REPRESENTATIVES, prompt
import ane_book
from ane_book.errors import InvalidInput
from ane_book.evidence.parity import check_parity
from ane_book.reference import find_reference
from ane_book.runtime import Session
from mlprogram import MLProgram
import numpy as np
import pytest

SILU = [name for name in REPRESENTATIVES if name != "gemma3_text"]  # whose layers have gelu


def ops(bundle, function: str) -> Counter:
    """The types of all ops of a bundle's function."""
    paths = [bundle.path / part.package for part in bundle.manifest.shards]
    return Counter(op.type for path in paths for op in MLProgram(path, function).operations)


@pytest.mark.parametrize("family", long_but(SILU, "llama"))
@pytest.mark.parametrize("kv", ["state", "host"])
def test_logits_are_the_same_in_single_precision(tiny_bundle, family, kv):
    native, tanh = (tiny_bundle(family, kv=kv, silu=form)[1] for form in ("native", "tanh"))
    for tokens in (1, 7, 8, 21):
        found = [Session(b, precision="fp32").logits(prompt(tokens)) for b in (native, tanh)]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert check_parity(tanh).passed


def test_three_ops_more_a_layer_and_none_of_silu(tiny_bundle):
    native, tanh = (tiny_bundle("llama", silu=form)[1] for form in ("native", "tanh"))
    for function in ("decode", "prefill"):
        old, new = ops(native, function), ops(tanh, function)
        assert not new["silu"] and new["tanh"] == old["silu"] > 0
        assert (new - old)["mul"] == 2 * old["silu"] and (new - old)["add"] == old["silu"]


def test_the_engines_own_activations_change_it_less(tiny_bundle):
    ids, off = prompt(9), []
    for form in ("native", "tanh"):
        bundle = tiny_bundle("llama", silu=form)[1]
        half, engine = (Session(bundle, p).logits(ids) for p in ("fp16", "ane"))
        off.append(np.abs(engine - half).max())
    assert off[1] < off[0] / 2


@pytest.mark.parametrize("experts", ["packed", "dispatch"])
def test_a_mixture(tmp_path, experts):
    source = str(find_reference("zaya-small").folder)
    made = [ane_book.convert(source, out=tmp_path / form, context=32, experts=experts, silu=form)
            for form in ("native", "tanh")]  # fmt: skip
    answers = [Session(b, precision="fp32").generate("Once", max_tokens=8) for b in made]
    assert answers[0].token_ids == answers[1].token_ids
    assert not any(
        op.type == "silu"
        for part in made[1].manifest.packages
        for op in MLProgram(made[1].path / part.package).operations
    )


def test_what_has_no_silu_is_refused(tiny, tmp_path):
    _, folder = tiny("gemma3_text")
    with pytest.raises(InvalidInput, match="layers of gemma3_text models have no silu"):
        ane_book.convert(str(folder), out=tmp_path / "made", context=32, silu="tanh")
    assert not (tmp_path / "made").exists()
    with pytest.raises(InvalidInput, match="silu goes with models that generate text"):
        ane_book.plan("all-minilm-l6-v2", silu="tanh")
