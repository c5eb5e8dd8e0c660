"""The form of attention that Apple asks for: other shapes and products, the same tokens.

Parity holds these bundles to PyTorch's model by rows, so the two forms check each other.
"""

from collections import Counter
import json

from _long import long_but
from _tiny import REPRESENTATIVES, prompt
from _zaya import maker
import ane_book
from ane_book.bundle import Bundle
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidBundle, InvalidInput
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session
from mlprogram import MLProgram
import numpy as np
import pytest

CONTEXT, PREFILL = 32, 8
FORMS = ("rows", "apple")
CACHES = {
    "state": {"kv": "state"},
    "state, select": {"kv": "state", "state_write": "select"},
    "host": {"kv": "host"},
}


def same(rows: Session, apple: Session) -> None:
    """Hold logits of prompts of any length, and tokens after them, to those by rows."""
    for tokens in (1, PREFILL - 1, PREFILL, PREFILL + 1, 21, CONTEXT):
        for session in (rows, apple):
            session.reset()
        expected = rows.logits(prompt(tokens))
        found = apple.logits(prompt(tokens))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert continued(apple) == continued(rows)


def continued(session: Session) -> list[int]:
    """The likeliest tokens after a prompt of five, one by one, stop tokens or not."""
    session.reset()
    tokens = [int(session.logits(prompt(5))[-1].argmax())]
    while len(tokens) < CONTEXT - 5:
        tokens.append(int(session.decode(tokens[-1]).argmax()))
    return tokens


#: One whose heads are normed after they are rotated, and one whose queries are normed whole.
NORMED = ("hunyuan_v1_dense", "olmo2")


@pytest.mark.parametrize("family", long_but((*REPRESENTATIVES, *NORMED), "gemma3_text"))
@pytest.mark.parametrize("cache", CACHES)
def test_every_kind_of_architecture(family, cache, tiny_bundle):
    pair = [tiny_bundle(family, form=form, **CACHES[cache])[1] for form in FORMS]
    same(*(Session(bundle, precision="fp32") for bundle in pair))
    assert check_parity(pair[1]).passed


#: ZAYAs with convolved queries, tails and experts, in one program or in programs of their own.
EXPERTS = {
    "usual": {"experts": "dispatch", "kv": "state", "form": "apple", "tiers": (32,)},
    "odd": {"experts": "dispatch", "kv": "host", "form": "apple", "tiers": (16,)},
    "sliding": {"experts": "packed", "kv": "host", "form": "apple"},
}


@pytest.mark.parametrize("size", long_but(EXPERTS, "odd"))
def test_zaya(size, tmp_path_factory):
    _, folder, apple = maker(tmp_path_factory, EXPERTS)(size)
    recipe = {"context": apple.recipe.context, "prefill": PREFILL} | EXPERTS[size]
    rows = ane_book.convert(str(folder), **recipe | {"form": "rows"})
    same(*(Session(bundle, precision="fp32") for bundle in (rows, apple)))
    assert check_parity(apple).passed


RECIPES = {
    "tiers and guesses": {"tiers": (16,), "verify": 4, "shard_limit": 100_000},
    "one function": {"tiers": (16,), "functions": "one", "prefill": None},
    "tokens, by tanh": {"kv": "host", "argmax_output": True, "silu": "tanh"},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_goes_with_every_other_option(recipe, tiny_bundle):
    options = {"kv": "state", **RECIPES[recipe]}
    rows, apple = (tiny_bundle("llama", form=form, **options)[1] for form in FORMS)
    guesses = "lookup" if "verify" in apple.manifest.functions else None
    expected, plain, guessed = (
        Session(bundle, precision="fp32").generate("xyxyxyxy", max_tokens=20, draft=draft)
        for bundle, draft in ((rows, None), (apple, None), (apple, guesses))
    )
    assert guessed.token_ids == plain.token_ids == expected.token_ids
    assert check_parity(apple).passed


@pytest.mark.parametrize("function", ["decode", "prefill"])
def test_the_shapes_and_products_are_apples(function, tiny_bundle):
    bundle = tiny_bundle("llama", kv="state", form="apple")[1]
    program = MLProgram(bundle.path / bundle.manifest.shards[0].package, function)
    config, T = bundle.config, program.inputs["hidden"].shape[3]
    n, H, KV = config.num_layers, config.num_heads, config.num_kv_heads * config.head_dim
    assert program.states["keys"].shape == program.states["values"].shape == (n, KV, 1, CONTEXT)
    assert program.inputs["mask"].shape == (1, CONTEXT + T, 1, T)
    assert program.inputs["rope_cos"].shape == (1, config.head_dim, 1, T)
    ops = Counter(op.type for op in program.operations)
    assert ops["einsum"] == 2 * H * n and ops["softmax"] == H * n and ops["transpose"] == n
    assert not ops["matmul"] and not ops["tile"]
    softmax = next(op for op in program.operations if op.type == "softmax")
    assert softmax.outputs[0][1].shape == (1, CONTEXT + T, 1, T)


def test_rows_that_are_handed_to_another_tier_are_columns(tiny_bundle):
    for kv in ("state", "host"):
        bundle = tiny_bundle("llama", kv=kv, form="apple", tiers=(16,))[1]
        session, ids = Session(bundle, precision="fp32"), prompt(CONTEXT)
        alone = Session(tiny_bundle("llama", kv=kv, form="apple")[1], precision="fp32")
        for token in ids:
            np.testing.assert_allclose(session.decode(token), alone.decode(token), atol=1e-5)
        assert all(session.tiers.values())


def test_a_manifest_that_says_another_form_is_refused(tiny_bundle, tmp_path):
    for form, other in (FORMS, FORMS[::-1]):
        bundle = tiny_bundle("llama", kv="state", form=form)[1]
        fields = json.loads((bundle.path / "manifest.json").read_text())
        assert fields["form"] == fields["recipe"]["form"] == form
        for name in bundle.manifest.files:
            (tmp_path / form / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / form / name).symlink_to(bundle.path / name)
        (tmp_path / form / "manifest.json").write_text(json.dumps(fields | {"form": other}))
        with pytest.raises(InvalidBundle, match="inputs .* do not fit; expected"):
            Bundle.open(tmp_path / form)


def test_a_tail_may_be_as_wide_as_a_cache(tmp_path_factory):
    """What is kept is told apart by its name."""
    recipe = {"kv": "host", "form": "apple", "context": 3, "prefill": 2}
    bundle = maker(tmp_path_factory, {"odd": recipe})("odd")[2]
    assert bundle.config.tail_width == bundle.manifest.context == 3
    assert check_parity(bundle).passed


def test_what_it_does_not_go_with_is_refused_by_name(tiny_bundle):
    with pytest.raises(InvalidInput, match="form goes with models that generate text"):
        ane_book.plan("all-minilm-l6-v2", form="apple")
    with pytest.raises(InvalidInput, match="form must be 'rows' or 'apple', not 'columns'"):
        make_recipe(form="columns")
    bundle = tiny_bundle("llama", kv="state")[1]
    with pytest.raises(InvalidInput, match="was converted with form = 'rows', not 'apple'"):
        ane_book.load(bundle.path, form="apple")
