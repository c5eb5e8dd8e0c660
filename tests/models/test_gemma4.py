"""Gemma 4: layers that share keys and values, caches of two head sizes, inputs of each layer."""

from itertools import pairwise
import json

from _tiny import assert_cut_anywhere, greedy, prompt, rewound, tiny_model, write_checkpoint
import ane_book
from ane_book.bundle import Bundle, seal
from ane_book.conversion.plan import plan
from ane_book.errors import InvalidBundle, InvalidInput, InvalidWeights, UnsupportedModel
from ane_book.evidence.parity import check_parity
from ane_book.models import find, find_gguf, read_config
from ane_book.runtime import Session
from mlprogram import MLProgram
import numpy as np
import pytest
import torch

CONTEXT, PREFILL = 48, 8

#: Who keeps the caches, and where packages end: before, between and after the layers that lend.
RECIPES = {
    "state": {"kv": "state", "verify": 4, "tiers": (16,)},
    "host": {"kv": "host", "shard_limit": 170_000, "verify": 4},
    "shards": {"kv": "state", "shard_limit": 120_000, "tiers": (16,)},
    "apple": {"kv": "state", "form": "apple", "state_write": "select", "shard_limit": 240_000},
    "one": {"functions": "one", "verify": 4, "prefill": 4, "form": "apple", "kv": "host"},
}


@pytest.fixture(scope="module")
def made(tiny_bundle):
    """`made(recipe)` -> (transformers model, bundle), converted once."""

    def make(recipe: str, **more):
        options = {"context": CONTEXT, "prefill": PREFILL} | RECIPES[recipe] | more
        return tiny_bundle("gemma4_text", **options)

    return make


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_prompt_cut_anywhere_gives_the_same(made, recipe):
    """Longer than the window, in chunks that are full or padded by every number of columns."""
    model, bundle = made(recipe)
    assert_cut_anywhere(model, Session(bundle, precision="fp32"), prompt(3 * PREFILL + 3))


@pytest.mark.parametrize("recipe", RECIPES)
def test_tokens_are_those_of_transformers(made, recipe):
    model, bundle = made(recipe)
    ids = greedy(model, prompt(13), CONTEXT - 13)
    session = Session(bundle, precision="fp32")
    assert session.generate(ids[:13], max_tokens=CONTEXT - 13).token_ids == ids[13:]
    expected = model(torch.tensor([ids])).logits[0]
    found = torch.from_numpy(Session(bundle).logits(ids))
    assert torch.cosine_similarity(found, expected, dim=1).min() > 0.999
    assert check_parity(bundle).passed


def test_going_back_leaves_nothing_behind(made):
    """In the copies that packages have of another package's cache, too."""
    session = Session(made("shards")[1], precision="fp32")
    for position in (33, 21, 8, 1, 0):
        again, expected = rewound(session, prompt(44), position)
        np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recipe", ["state", "host"])
def test_guesses_change_no_token(made, recipe):
    model, bundle = made(recipe)
    ids = greedy(model, prompt(13), 30)

    class Oracle:
        def propose(self, tokens, most):
            own = ids[len(tokens) : len(tokens) + most]
            return [t if (len(tokens) + i) % 3 else 1 - t % 2 for i, t in enumerate(own)]

    guessed = Session(bundle, precision="fp32").generate(ids[:13], max_tokens=30, draft=Oracle())
    assert guessed.token_ids == ids[13:] and 0 < guessed.accepted < guessed.drafted


@pytest.mark.parametrize("quant", ["int8", "lut6"])  # four bits are too few for rows so short
def test_quantised_layers_stay_close(made, quant):
    """To what PyTorch computes with the weights as they were."""
    _, bundle = made("shards", quant=quant)
    assert check_parity(bundle).passed


def _off(bundle, model, ids) -> float:
    """How far a bundle's logits are from a model's, as a share of the largest."""
    expected = model(torch.tensor([ids])).logits[0].numpy()
    found = Session(bundle, precision="fp32").logits(ids)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def test_rounded_inputs_of_layers_cost_something_in_single_precision_alone(made):
    """In half precision a program's inputs are rounded so anyway."""
    model, bundle = made("state")
    ids, every = prompt(40), torch.arange(257)[None]
    own = model.model.get_per_layer_inputs(every, None)
    own = model.model.project_per_layer_inputs(model.model.embed_tokens(every), own)
    rows, exact = own.reshape(257, 70).numpy(), Bundle.open(bundle.path)
    assert (np.abs(bundle.per_layer - rows) <= np.spacing(np.abs(bundle.per_layer))).all()
    vars(exact)["per_layer"] = rows
    assert _off(exact, model, ids) < _off(bundle, model, ids) < 2e-3
    vars(exact)["per_layer"] = bundle.per_layer.astype(np.float32)
    half = [Session(one).logits(ids) for one in (bundle, exact)]
    np.testing.assert_array_equal(*half)


def test_eight_bits_cost_more_where_scores_are_large(tmp_path):
    """This family does not scale its scores: with norms of queries as `transformers` begins them
    they are four times as large as here, and whatever is quantised costs more."""
    lost = []
    for name, factor in (("small", 1.0), ("large", 4.0)):
        model = tiny_model("gemma4_text")
        for tensor, value in model.named_parameters():
            value.mul_(factor if tensor.endswith("q_norm.weight") else 1.0)
        folder = write_checkpoint(model, tmp_path / name)
        out = tmp_path / f"{name} made"
        bundle = ane_book.convert(str(folder), out=out, quant="int8", context=CONTEXT, prefill=8)
        lost.append(_off(bundle, model, prompt(40)))
    assert 4 * lost[0] < lost[1] and lost[0] < 0.1


def test_the_likeliest_token_needs_no_bound(made):
    """tanh is in no program that gives tokens, and the tokens are those of the logits."""
    model, bundle = made("state", argmax_output=True)
    head = MLProgram(bundle.path / "head.mlpackage", "decode")
    assert "tanh" not in {op.type for op in head.operations}
    ids = greedy(model, prompt(13), 20)
    assert Session(bundle, "fp32").generate(ids[:13], max_tokens=20).token_ids == ids[13:]


def test_packages_after_the_lenders_have_copies(made):
    """Two states at most in each; values are handed on as long as a layer takes them."""
    _, bundle = made("shards")
    parts = bundle.manifest.shards
    assert [part.layers for part in parts] == [*pairwise(range(8))]
    functions = [part.functions["decode"] for part in parts]
    sizes = {"_local": (1, 2, CONTEXT, 12), "": (1, 1, CONTEXT, 20)}
    for function, kind in zip(functions, bundle.config.layer_types, strict=True):
        suffix = "_local" if kind == "sliding" else ""
        names = {f"keys{suffix}", f"values{suffix}"}
        assert {n: t.shape for n, t in function.states.items()} == dict.fromkeys(
            names, sizes[suffix]
        )
    handed = [[n for n in f.outputs if n.startswith("shared")] for f in functions]
    assert list(map(len, handed)) == [0, 2, 4, 4, 4, 2, 0]
    states = made("state")[1].manifest.shards[0].functions["decode"].states
    assert {n: t.shape for n, t in states.items()} == {
        "cache": (2, 1, CONTEXT, 20), "cache_local": (4, 2, CONTEXT, 12),
    }  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_plan_counts_tables_and_copies(made, recipe):
    _, bundle = made(recipe)
    planned, parts = plan(bundle.config, bundle.recipe), bundle.manifest.shards
    functions = [part.functions[bundle.manifest.reading] for part in parts]
    caches = [t for f in functions for n, t in f.inputs.items() if f"new_{n}" in f.outputs]
    caches += [t for f in functions for t in f.states.values()]
    assert planned.cache_bytes == sum(2 * int(np.prod(t.shape)) for t in caches)
    table = bundle.per_layer
    assert table is not None and table.shape == (257, 70)
    assert planned.per_layer_bytes == table.nbytes
    assert "a row a token" in dict(planned.facts())["own inputs"]


def test_a_table_that_does_not_fit_is_refused(made, tmp_path):
    """By the contract, and by the size of its file."""
    fields = json.loads((made("state")[1].path / "manifest.json").read_bytes())
    for change, message in (
        ([257, 69], "per_layer of .257, 69. does not go with 7 layers and a vocabulary of 257"),
        ([257, 63], "'decode': inputs .'hidden'"),
        ([250, 70], "per_layer of .250, 70. does not go with 7 layers"),
        ([257, 7000], "more than its file holds"),
        (None, "'decode': inputs .'hidden'"),
    ):
        changed = fields | {"per_layer": change and {"file": "per_layer.npy", "shape": change}}
        text = json.dumps(changed | {"seal": seal(changed)})
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(InvalidBundle, match=message):
            Bundle.open(tmp_path)


def test_a_checkpoint_that_sees_and_hears_is_its_text_model(tmp_path):
    """By the names of `transformers`, with towers beside it, and the keys and values that published
    files have for layers which borrow."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, Gemma4ForConditionalGeneration

    model = tiny_model("gemma4_text")
    text = write_checkpoint(model, tmp_path / "text")
    whole = write_checkpoint(model, tmp_path / "whole")
    fields = json.loads((text / "config.json").read_text())
    config = AutoConfig.for_model("gemma4", text_config=model.config.to_dict())
    own = Gemma4ForConditionalGeneration(config).state_dict()
    tensors = load_file(whole / "model.safetensors")
    renamed = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    assert renamed.keys() == own.keys() - {"lm_head.weight"}
    for i in range(3, 7):
        renamed[f"model.language_model.layers.{i}.self_attn.k_proj.weight"] = torch.ones(3)
    for tower in ("vision_tower", "audio_tower", "embed_vision", "embed_audio"):
        renamed[f"model.{tower}.a.weight"] = torch.ones(3)
    save_file(renamed, whole / "model.safetensors")
    fields = {"model_type": "gemma4", "text_config": fields, "vision_config": {}}
    (whole / "config.json").write_text(json.dumps(fields))
    found = [
        ane_book.convert(str(folder), out=tmp_path / f"{folder.name} made", context=32)
        for folder in (text, whole)
    ]
    answers = [Session(bundle).generate(prompt(9), max_tokens=12).token_ids for bundle in found]
    assert answers[0] == answers[1]
    tables = [(bundle.path / "per_layer.npy").read_bytes() for bundle in found]
    assert tables[0] == tables[1]
    save_file(renamed | {"model.other.weight": torch.ones(3)}, whole / "model.safetensors")
    with pytest.raises(InvalidWeights, match="tensor model.other.weight is left over"):
        ane_book.convert(str(whole), out=tmp_path / "refused", context=32)


def test_published_fields_are_those_that_transformers_writes():
    """Head sizes of full layers by their two fields, or by each layer's number."""
    fields = tiny_model("gemma4_text").config.to_dict()
    expected = read_config(fields)
    del fields["per_layer_config"]
    published = fields | {"global_head_dim": 20, "num_global_key_value_heads": 1}
    assert read_config(published) == expected
    unread = read_config(published | {"attention_k_eq_v": False})
    assert unread.full_kv_heads == expected.num_kv_heads  # as `transformers` has it
    plain = type(tiny_model("gemma4_text").config)().to_dict()
    assert plain["per_layer_config"].keys() == {"05", "11", "17", "23", "29"}
    assert read_config(plain).full_head_dim == 512
    assert read_config(plain | {"rope_parameters": None}) == read_config(plain)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"enable_moe_block": True}, UnsupportedModel, "enable_moe_block = True is not supported"),
        ({"use_bidirectional_attention": "all"}, UnsupportedModel, "attention = 'all' is not"),
        ({"attention_bias": True}, UnsupportedModel, "attention_bias = True"),
        ({"vocab_size_per_layer_input": 256}, UnsupportedModel, "input = 256 of a vocabulary of"),
        ({"per_layer_config": {"1": {"head_dim": 20}}}, UnsupportedModel, "heads that differ betw"),
        ({"num_kv_shared_layers": 6}, ValueError, "none before them is full"),
        ({"num_kv_shared_layers": 9}, ValueError, "9 of 7 layers share keys and values"),
        ({"final_logit_softcapping": -1.0}, ValueError, "softcap"),
    ],
)
def test_a_configuration_that_will_not_do(changes, error, message):
    fields = tiny_model("gemma4_text").config.to_dict()
    with pytest.raises(error, match=message):
        read_config(fields | changes)


def test_what_there_is_not_is_refused_by_name(made, tmp_path, tiny):
    folder = str(tiny("gemma4_text")[1])
    with pytest.raises(InvalidInput, match="gemma4_text models have layers that share keys and"):
        ane_book.convert(folder, out=tmp_path / "b", quant="auto:5")
    with pytest.raises(InvalidInput, match="layers differ: merge the adapter into the weights"):
        ane_book.convert(folder, out=tmp_path / "b", lora_slots=4)
    with pytest.raises(UnsupportedModel, match="architecture 'gemma4' is not supported; supported"):
        find_gguf("gemma4")


def test_every_kind_of_layer_has_its_sizes():
    config = read_config(tiny_model("gemma4_text").config.to_dict())
    architecture = find(config.architecture)
    assert architecture.kinds(config) == [
        "sliding", "full_lending", "sliding_lending", "sliding_borrowing", "full_borrowing",
        "sliding_borrowing", "full_borrowing",
    ]  # fmt: skip
    rows = [architecture.parameters(config, kind) for kind in ("sliding", "full_borrowing")]
    assert [own["feed_forward.down.weight"][0].shape for own in rows] == [(64, 96), (64, 192)]
    assert len(rows[1]["attention.qkv.weight"]) == len(rows[1]["attention.prepare.weight"]) == 1
    masks = architecture.signatures(config).host()
    assert masks["mask"].group == 4 and masks["mask_local"].group == 2
