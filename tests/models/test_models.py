"""The decoder in ANE form against `transformers`: the same weights, the same logits."""

from itertools import cycle
import json
from math import prod

from _long import long_but
from _tiny import (
    TINY,
    VARIANTS,
    greedy,
    longrope,
    margins,
    odd,
    prompt,
    tiny_model,
    write_checkpoint,
)
from _whole_decoder import Decoder
import ane_book
from ane_book.conversion import _open
from ane_book.conversion.recipe import make_recipe
from ane_book.conversion.write.decoder import lower_blocks
from ane_book.host import causal_mask, per_layer_columns
from ane_book.layout import MEMORY, PER_LAYER, CallShape, Tail
from ane_book.models import find, read_config
from ane_book.models.base.decoder import Head, Winner
from ane_book.models.base.layers import rms_normalize
from ane_book.options import Recipe
from ane_book.runtime import Session
import coremltools as ct
from mlprogram import MLProgram
import numpy as np
import pytest
import torch

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def decoder_of(model) -> Decoder:
    config = read_config(model.config.to_dict())
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    return Decoder.from_weights(config, weights.__getitem__)


def per_layer_rows(model, config) -> np.ndarray:
    """What every token gives to all layers, (V, L * P)."""
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    architecture = find(config.architecture)
    outer = architecture.outer(config)
    table, embedding = (weights[outer[n].name] for n in ("per_layer.table", "embedding"))
    read, halves = weights.__getitem__, iter(np.array_split(table, 2))
    rows = architecture.per_layer_rows(config, read, embedding.astype(np.float16), halves)
    return np.concatenate([*rows])


def logits(
    decoder: Decoder, model, ids: list[int], chunks: list[int], context: int
) -> torch.Tensor:
    """Logits (n, V) of `ids`, run in calls of the given lengths over one cache and its tails."""
    config, dtype = decoder.config, decoder.head.norm.weight.dtype
    host, signatures = find(config.architecture).host(config), decoder.signatures
    call, kinds, found, at = CallShape(1, context), signatures.kept, [], 0
    holders = {name: len(own) for name, own in signatures.holders().items()}
    kept = {name: torch.zeros(kinds[name].shape(call, n)) for name, n in holders.items()}
    widths = {name: kind.width for name, kind in kinds.items() if isinstance(kind, Tail)}
    kept |= {name: torch.nn.functional.pad(kept[name], (0, context)) for name in widths}
    for tokens in chunks:
        rows = model.get_input_embeddings().weight[ids[at : at + tokens]]  # (T, C)
        tables = host.tables(np.arange(at, at + tokens), context)
        for name in host.masks.keys() & decoder.inputs:
            mask = causal_mask(at, tokens, context, host.masks[name])
            tables[name] = np.tile(mask, (1, 1, signatures.host()[name].group, 1))
        tables["real"] = np.ones((1, 1, 1, tokens))
        if PER_LAYER in decoder.inputs:
            own = per_layer_rows(model, config)[ids[at : at + tokens]]
            tables[PER_LAYER] = per_layer_columns(own, config.num_layers)
        given = [torch.from_numpy(tables[name]) for name in decoder.inputs]
        before = [
            whole[..., at : at + widths[name]] if name in widths else whole
            for name, whole in kept.items()
        ]
        inputs = (rows.T[None, :, None] * host.embedding_scale, *given, *before)
        out, *new = decoder(*(x.to(dtype) for x in inputs))
        for (name, whole), own in zip(kept.items(), new, strict=True):
            if name == MEMORY:
                kept[name] = own
            elif name in widths:
                whole[..., widths[name] + at : widths[name] + at + tokens] = own
            else:
                whole[:, :, at : at + tokens] = own
        found.append(out[0, :, 0].T)
        at += tokens
    return torch.cat(found)


PROMPT, ANSWER, CONTEXT = 40, 64, 112
CHUNKS = [PROMPT, 8, 8, 1, 3] + [8] * 5 + [1] * 4


@pytest.mark.parametrize("family", TINY)
def test_logits_equal_those_of_transformers(family):
    """In chunks of several lengths, of each variant; in single precision, and all in fp16, as the
    packages are, with tables and mask rounded to it too. Of a mixture that is said of tokens whose
    choice of experts is clear."""
    for variant, changes in VARIANTS.items():
        own = changes(family) | ({"tie_word_embeddings": False} if variant == "odd" else {})
        model, ids = tiny_model(family, **own), prompt(PROMPT + ANSWER)
        expected, decoder = model(torch.tensor([ids])).logits[0], decoder_of(model)
        stored = [*model.named_parameters(), *model.named_buffers()]
        shapes = {n: tuple(p.shape) for n, p in stored if n in model.state_dict()}
        assert find(family).tensors(decoder.config) == shapes
        found = logits(decoder, model, ids, CHUNKS, CONTEXT)
        assert (found - expected).abs().max() < 3e-4, variant
        half = logits(decoder.half(), model, ids, CHUNKS, CONTEXT)
        clear = margins(model, ids) > 0.002
        assert clear.float().mean() > 0.8
        cosine = torch.cosine_similarity(half.float(), expected, dim=1)
        assert cosine[clear].min() > 0.999, variant


ODD = dict(zip(TINY, cycle(["state", "host"]), strict=False))


@pytest.mark.parametrize("family", long_but(ODD, "gemma3_text"))
def test_the_bundle_of_an_odd_model_gives_its_tokens(tmp_path, family):
    model = tiny_model(family, **odd(family))
    folder = write_checkpoint(model, tmp_path / "checkpoint")
    recipe = {"kv": ODD[family], "context": CONTEXT, "prefill": 16, "head_rows": 100}
    bundle = ane_book.convert(str(folder), out=tmp_path / "bundle", **recipe)
    ids = greedy(model, prompt(PROMPT), ANSWER)
    expected = model(torch.tensor([ids])).logits[0].numpy()
    session = Session(bundle, precision="fp32")
    found = np.stack([session.prefill(ids[:PROMPT]), *map(session.decode, ids[PROMPT:])])
    assert abs(found - expected[PROMPT - 1 :]).max() < 1e-3
    assert found[:-1].argmax(axis=1).tolist() == ids[PROMPT:]
    half, clear = torch.from_numpy(Session(bundle).logits(ids)), margins(model, ids) > 0.002
    cosine = torch.cosine_similarity(half, torch.from_numpy(expected), dim=1)
    assert clear.float().mean() > 0.8 and cosine[clear].min() > 0.999


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize(
    "scaling",
    [
        YARN | {"original_max_position_embeddings": 32},
        YARN | {"original_max_position_embeddings": 32, "attention_factor": 3.0},
        longrope(16, partial=1.0) | {"original_max_position_embeddings": 32},
    ],
    ids=["yarn", "factor 3", "longrope"],
)
def test_a_norm_after_the_rotation_undoes_the_attention_factor(scaling, eps):
    """But for its eps, which is felt where it is large."""
    parameters = {"rope_theta": 10000.0} | scaling
    model = tiny_model("hunyuan_v1_dense", rope_parameters=parameters, rms_norm_eps=eps)
    ids = prompt(70)
    expected = model(torch.tensor([ids])).logits[0]
    found = logits(decoder_of(model), model, ids, [70], context=96)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"beta_fast": 16.0, "beta_slow": 2.0},
        {"attention_factor": 1.25},
        {"mscale": 0.707, "mscale_all_dim": 0.9},
        {"mscale": 0.707},
        {"truncate": False},
        {"factor": None},
        {"factor": 1.0},
        {"original_max_position_embeddings": 8},  # no pair turns even once
    ],
    ids=str,
)
def test_yarn_is_that_of_transformers(changes):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = LlamaConfig(
        hidden_size=384, num_attention_heads=4, num_key_value_heads=2, head_dim=96,
        max_position_embeddings=16384, rope_parameters={"rope_theta": 5e5} | YARN | changes,
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    rotary = read_config(theirs.to_dict()).rotary
    np.testing.assert_allclose(rotary._frequencies(100), expected.numpy(), rtol=1e-6)
    assert rotary.attention_factor == pytest.approx(factor, rel=1e-9)


@pytest.mark.parametrize("kind", ["llama3", "longrope", "yarn"])
@pytest.mark.parametrize("top", [48, None])
def test_the_original_context_is_where_transformers_looks_for_it(kind, top):
    """At the top of config.json, in the scaling, or nowhere: then it is the context."""
    config = tiny_model("llama").config.to_dict() | {"rope_parameters": None}
    config["rope_scaling"] = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0,
                              "high_freq_factor": 4.0, "short_factor": [1.0] * 8,
                              "long_factor": [2.0] * 8}  # fmt: skip
    config["original_max_position_embeddings"] = top
    scaling = read_config(config).rope_scaling
    assert scaling["original_max_position_embeddings"] == (top or 128)


@pytest.mark.parametrize("kind", ["longrope", "yarn"])
@pytest.mark.parametrize("place", ["top", "inside", None])
def test_phi_reads_its_scaling_as_transformers_does(tmp_path, kind, place):
    """By its earlier name too; the original context counts at the top alone, else it is 4,096."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    original = {"original_max_position_embeddings": 2048}
    fields = tiny_model("phi3").config.to_dict() | {"max_position_embeddings": 8192}
    del fields["rope_parameters"], fields["original_max_position_embeddings"]
    divisors = {"short_factor": [1.0] * 12, "long_factor": [2.0] * 12, "type": kind}
    fields["rope_scaling"] = divisors | (original if place == "inside" else {})
    fields |= {"rope_theta": 1e4, "partial_rotary_factor": 0.75}
    fields |= original if place == "top" else {}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    theirs = AutoConfig.from_pretrained(tmp_path)
    rotary = read_config(fields).rotary
    for tokens in (2000, 3000, 5000):
        expected, factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, "cpu", seq_len=tokens)
        np.testing.assert_allclose(rotary._frequencies(tokens), expected.numpy(), rtol=1e-6)
        assert rotary.attention_factor == pytest.approx(factor, rel=1e-9)


def test_longrope_goes_by_the_context_of_the_bundle():
    """Short divisors up to the original context, long ones beyond, whatever is asked of them."""
    changes = {"rope_parameters": longrope(12), "original_max_position_embeddings": 64}
    model = tiny_model("phi3", **changes)
    ids = prompt(80)
    for tokens, context in ((60, 64), (80, 96)):  # what transformers goes by: the tokens
        expected = model(torch.tensor([ids[:tokens]])).logits[0]
        found = logits(decoder_of(model), model, ids[:tokens], [tokens], context)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    long = logits(decoder_of(model), model, ids[:60], [60], 96)
    assert (long - logits(decoder_of(model), model, ids[:60], [60], 64)).abs().max() > 0.01


@pytest.mark.parametrize(
    ("family", "kv"), long_but([("phi3", "state"), ("mistral", "host")], ("phi3", "state"))
)
def test_a_window_shorter_than_the_context_hides_what_is_before_it(tmp_path, family, kv):
    model = tiny_model(family, sliding_window=24, num_hidden_layers=2)
    folder = str(write_checkpoint(model, tmp_path / "checkpoint"))
    bundle = ane_book.convert(folder, out=tmp_path / "bundle", context=96, prefill=16, kv=kv)
    ids = prompt(90)
    expected = model(torch.tensor([ids])).logits[0].numpy()
    session = Session(bundle, precision="fp32")
    np.testing.assert_allclose(session.logits(ids[:83]), expected[:83], rtol=1e-4, atol=2e-4)
    session.rewind(70)  # to where the window lies before what was run last
    found = np.stack([session.decode(token) for token in ids[70:]])
    np.testing.assert_allclose(found, expected[70:], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("stated", "window"), [({}, 4096), ({"sliding_window": None}, None)])
def test_a_mistral_that_names_no_window_has_that_of_transformers(stated, window):
    config = tiny_model("mistral").config.to_dict()
    del config["sliding_window"]
    assert read_config(config | stated).sliding_window == window
    assert type(tiny_model("mistral").config)().sliding_window == 4096


def test_a_gemma_that_names_no_theta_has_those_of_transformers():
    config = tiny_model("gemma3_text").config.to_dict() | {"rope_parameters": None}
    read = read_config(config)
    theirs = type(tiny_model("gemma3_text").config)().rope_parameters
    assert read.rope_theta == theirs["full_attention"]["rope_theta"]
    assert read.rope_local_theta == theirs["sliding_attention"]["rope_theta"]


@pytest.mark.parametrize("name", ane_book.reference_models())
def test_reference_models_have_their_true_shapes(name):
    """Data: the parameters that each is known to have are those of its configuration."""
    model = ane_book.reference_models()[name]
    found, source = _open(name, "random")  # what `--source random` takes
    assert found == name and source.kind == "random"
    assert sum(prod(source.shape(name)) for name in source.names()) == model.parameters
    make_recipe(quant=model.recipe.quant, shard_limit=model.recipe.shard_limit)
    assert model.task == find(source.config()["model_type"]).task
    assert model.evidence and (model.repo_id is None) == bool(model.trained)
    place = model.repo_id or f"in this package, trained by {model.trained}"
    assert dict(model.rows())["source"].startswith(place)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3e4])
@pytest.mark.parametrize("dim", [1, 3])
def test_rms_norm_is_exact_for_tiny_and_huge_activations(scale, dim):
    x = torch.randn(1, 48, 5, 32, generator=torch.Generator().manual_seed(2)).double() * scale
    expected = x / torch.sqrt((x * x).mean(dim=dim, keepdim=True) + 1e-5)
    found = rms_normalize(x.float(), dim, 1e-5)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_norms_of_heads_are_one_op_too_which_holds_no_squares(family):
    """In fp16 the square of 256 is beyond all numbers, and queries are larger in some models."""
    config = read_config(tiny_model(family).config.to_dict())
    pieces = lower_blocks(config, Recipe(context=32, prefill=8))
    for piece in (block for own in pieces.values() for block in own.blocks.values()):
        kinds = [operation.type for operation in piece.operations]
        assert "rsqrt" not in kinds and kinds.count("layer_norm") >= 3


def test_winner_is_the_first_of_the_largest():
    config = read_config(tiny_model("llama").config.to_dict())
    splits = (100, 100, 57)
    logits = [
        torch.randn(1, rows, 1, 4, generator=torch.Generator().manual_seed(3)) for rows in splits
    ]
    logits[2][0, 5, 0, 1] = logits[0][0, 7, 0, 1] = 99.0  # a tie across parts
    logits[1][0, 9, 0, 2] = logits[1][0, 30, 0, 2] = 99.0  # a tie inside one
    whole = torch.cat(logits, dim=1)[0, :, 0]
    assert Winner(splits)(*logits)[0].tolist() == whole.argmax(dim=0).tolist()
    assert [p.out_channels for p in Head(config, splits).parts] == list(splits)


def test_a_winner_beyond_16_bits_is_named_as_it_is(tmp_path):
    """coremltools casts integers that a gather reads to 16 bits (its fault gather-narrowed)."""
    splits = (20_000, 20_000)
    logits = [torch.zeros(1, rows, 1, 1) for rows in splits]
    logits[1][0, 19_000] = 1
    model = ct.convert(
        torch.jit.trace(Winner(splits).eval(), logits),
        inputs=[ct.TensorType(f"logits_{i}", part.shape) for i, part in enumerate(logits)],
        outputs=[ct.TensorType("token", dtype=np.int32)],
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )
    model.save(str(tmp_path / "winner.mlpackage"))
    program = MLProgram(tmp_path / "winner.mlpackage")
    given = {name: part.numpy() for name, part in zip(program.inputs, logits, strict=True)}
    assert program.predict(given)["token"].tolist() == [[39_000]]


@pytest.mark.parametrize("beta", [0.1, 0.0])
def test_ministral3_takes_no_context_in_which_queries_grow(beta):
    """But the factor of YaRN, where none is stated, is that of the whole context."""
    fields = tiny_model("ministral3", max_position_embeddings=512).config.to_dict()
    fields["rope_parameters"] |= {"llama_4_scaling_beta": beta}
    del fields["rope_parameters"]["factor"]
    config = read_config(fields)
    assert config.max_position == (128 if beta else 512)
    assert config.rope_scaling["factor"] == 4.0


def test_a_layer_without_rotation_gets_tables_whose_angles_are_zero():
    config = read_config(tiny_model("smollm3").config.to_dict())
    tables = find("smollm3").host(config).tables(torch.arange(9).numpy(), 16)
    assert (tables["unrotated_sin"] == 0).all()
    assert (tables["unrotated_cos"] == tables["rope_cos"][0, 0, 0, 0]).all()  # at position 0
