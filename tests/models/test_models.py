"""The decoder in ANE form against `transformers`: the same weights, the same logits."""

from itertools import cycle, product
import json
from math import prod
import tomllib

from _long import long_but
from _tiny import (
    COMMON,
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
import ane_book
from ane_book.conversion import _open
from ane_book.conversion.recipe import make_recipe
from ane_book.conversion.write.decoder import lower_blocks
from ane_book.errors import AneBookError, InvalidInput, InvalidWeights, UnsupportedModel
from ane_book.host import causal_mask, per_layer_columns
from ane_book.layout import MEMORY, PER_LAYER, CallShape, Tail
from ane_book.models import find, read_config
from ane_book.models.base.decoder import Decoder, Head, Winner
from ane_book.models.base.layers import rms_normalize
from ane_book.options import Recipe
from ane_book.reference import MODELS, ReferenceModel
from ane_book.runtime import Session
from ane_book.weights.random import RandomSource
import numpy as np
from pydantic import TypeAdapter, ValidationError
import pytest
import torch

ROPE_SCALING = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}

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
        model, ids = tiny_model(family, **changes(family)), prompt(PROMPT + ANSWER)
        expected, decoder = model(torch.tensor([ids])).logits[0], decoder_of(model)
        found = logits(decoder, model, ids, CHUNKS, CONTEXT)
        assert (found - expected).abs().max() < 3e-4, variant
        half = logits(decoder.half(), model, ids, CHUNKS, CONTEXT)
        clear = margins(model, ids) > 0.002
        assert clear.float().mean() > 0.8
        cosine = torch.cosine_similarity(half.float(), expected, dim=1)
        assert cosine[clear].min() > 0.999, variant


ODD = dict(zip(TINY, cycle(["state", "host"]), strict=False))


@pytest.mark.parametrize("family", long_but(ODD, "gemma3_text", "hunyuan_v1_dense", "phi3"))
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


@pytest.mark.parametrize("kind", ROPE_SCALING)
def test_rotary_scaling_equals_that_of_transformers(kind):
    parameters = {"rope_theta": 10000.0} | ROPE_SCALING[kind]
    model = tiny_model("llama", rope_parameters=parameters)
    ids = list(range(40, 110))  # long enough for the scaled frequencies to matter
    expected = model(torch.tensor([ids])).logits[0]
    found = logits(decoder_of(model), model, ids, [70], context=96)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("tied", [True, False])
def test_weight_shapes_are_those_of_the_checkpoint(tied):
    for family in TINY:
        model = tiny_model(family, tie_word_embeddings=tied)
        stored = [*model.named_parameters(), *model.named_buffers()]
        expected = {n: tuple(p.shape) for n, p in stored if n in model.state_dict()}
        config = read_config(model.config.to_dict())
        assert find(config.architecture).tensors(config) == expected


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


WINDOWED = [{"kv": "state"}, {"kv": "host"}]


@pytest.mark.parametrize(
    ("family", "variant"),
    long_but(
        product(("phi3", "mistral"), WINDOWED), ("phi3", WINDOWED[0]), ("mistral", WINDOWED[1])
    ),
)
def test_a_window_shorter_than_the_context_hides_what_is_before_it(tmp_path, family, variant):
    model = tiny_model(family, sliding_window=24, num_hidden_layers=2)
    folder = str(write_checkpoint(model, tmp_path / "checkpoint"))
    bundle = ane_book.convert(folder, out=tmp_path / "bundle", context=96, prefill=16, **variant)
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


GEMMA = {"sliding_window": 8, "query_pre_attn_scalar": 16}
BY_KIND = {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 12, "long_factor": [2.0] * 12}


@pytest.mark.parametrize(
    ("family", "changes", "error", "message"),
    [
        ("gpt2", {}, UnsupportedModel,
         "'gpt2' is not one .* supported: bert, exaone4, gemma3_text, gemma4, gemma4_text, glm4, "),
        ("phi3", {"rope_scaling": LONG | {"short_factor": [1.0] * 16}}, InvalidWeights,
         "short_factor has 16 numbers, but 24 rotated dimensions make 12 pairs"),
        ("phi3", {"rope_scaling": LONG | {"long_factor": [1.0] * 11}}, InvalidWeights,
         "long_factor has 11 numbers"),
        ("phi3", {"rope_scaling": {"type": "su"}}, InvalidWeights, "'longrope' .*'short_factor'"),
        ("phi3", {"partial_rotary_factor": 0.72}, InvalidWeights, "23 of head_dim 32 dimensions"),
        ("phi3", {"partial_rotary_factor": 1.5}, InvalidWeights, "48 of head_dim 32 dimensions"),
        ("phi3", {"attention_bias": True}, UnsupportedModel, "attention_bias = True is not"),
        ("phi3", {"lm_head_bias": True}, UnsupportedModel, "lm_head_bias = True is not"),
        ("llama", {"partial_rotary_factor": 0.5}, UnsupportedModel, "0.5 is not .* llama models"),
        ("llama", {"rope_scaling": {"type": "linear"}}, InvalidWeights, "'linear' .*'factor'"),
        ("llama", {"rope_scaling": {"type": "dynamic", "alpha": 2.0}}, UnsupportedModel,
         "type 'dynamic' is not supported for llama models; supported: .*llama3, longrope, yarn"),
        ("llama", {"rope_scaling": YARN | {"factor": float("nan")}}, InvalidWeights,
         "'yarn' cannot be used: .*no finite number"),
        ("llama", {"rope_scaling": YARN | {"factor": "4"}}, InvalidWeights, "'yarn' cannot be"),
        ("llama", {"rope_scaling": YARN, "original_max_position_embeddings": -1}, InvalidWeights,
         "'yarn' cannot be used: .*math domain"),
        ("llama", {"rope_theta": float("inf")}, InvalidWeights, "rope_theta: .*finite"),
        ("llama", {"rope_theta": -1e4}, InvalidWeights, "rope_theta: .*greater than 0"),
        ("llama", {"num_hidden_layers": 10**9}, InvalidWeights, "num_layers: .*10000"),
        ("llama", {"num_hidden_layers": 0}, InvalidWeights, "num_layers: .*greater than 0"),
        ("llama", {"hidden_size": 1 << 30}, InvalidWeights, "hidden_size: .*1048576"),
        ("llama", {"head_dim": 1 << 30}, InvalidWeights, "head_dim: .*1048576"),
        ("llama", {"vocab_size": 1 << 40}, InvalidWeights, "vocab_size: .*16777216"),
        ("llama", {"num_key_value_heads": -2}, InvalidWeights, "num_kv_heads: .*greater than 0"),
        ("llama", {"max_position_embeddings": 1 << 60}, InvalidWeights, "max_position: "),
        ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "alpha": -2.0}},
         InvalidWeights, "'dynamic' cannot be used: .*math domain"),
        ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, UnsupportedModel,
         "hunyuan_v1_dense models; .* dynamic with alpha"),
        ("hunyuan_v1_dense", {"rope_scaling": YARN | {"attention_factor": 0.0}},
         InvalidWeights, "an attention factor of 0.0 is no use"),
        ("hunyuan_v1_dense", {"rope_scaling": YARN | {"attention_factor": float("nan")}},
         InvalidWeights, "'yarn' cannot be used: .*no finite number"),
        ("qwen2", {"use_sliding_window": True}, UnsupportedModel, "use_sliding_window = True"),
        ("gemma3_text", GEMMA | {"attn_logit_softcapping": 50.0}, UnsupportedModel,
         "attn_logit_softcapping = 50.0 is not supported for gemma3_text models"),
        ("gemma3_text", GEMMA | {"layer_types": ["full_attention"]}, UnsupportedModel,
         "layer_types = .'full_attention'. of 3 layers; every layer needs one of full_att"),
        ("gemma3_text", GEMMA | {"layer_types": ["a\nb"] * 10**5}, UnsupportedModel,
         r"layer_types = .'a.nb', .{1,200} of 3 layers"),
        ("gemma3_text", GEMMA | {"layer_types": 3}, UnsupportedModel, "layer_types = 3 of 3"),
        ("gemma3_text", GEMMA | {"rope_parameters": BY_KIND | {"full_attention": "x"}},
         InvalidWeights, "rope_parameters: full_attention is not an object"),
        ("gemma3_text", GEMMA | {"rope_parameters": {"full_attention": {}}}, InvalidWeights,
         "rope_parameters: sliding_attention is not an object"),
        ("gemma3_text", GEMMA | {"rope_parameters": BY_KIND}, UnsupportedModel,
         "of type 'linear' are not supported for the sliding_attention"),
        ("gemma3_text", GEMMA | {"query_pre_attn_scalar": 5e-324}, InvalidWeights,
         "attention_scale: .*less than or equal to 16384"),
        ("gemma3_text", GEMMA | {"sliding_window": None}, InvalidWeights, "sliding_window: "),
        ("gemma3_text", GEMMA | {"query_pre_attn_scalar": 0}, InvalidWeights, "no use"),
        ("granite", {"mlp_bias": True}, UnsupportedModel, "mlp_bias = True"),
        ("granite", {"logits_scaling": 0.0}, InvalidWeights, "logits_scaling: "),
        ("granite", {"logits_scaling": 5e-324}, InvalidWeights, "logits_scaling: .*greater"),
        ("granite", {"attention_multiplier": 1e308}, InvalidWeights, "attention_multiplier: "),
        ("granite", {"residual_multiplier": 1e308}, InvalidWeights, "residual_multiplier: .*less"),
        ("granite", {"embedding_multiplier": 1e308}, InvalidWeights, "embedding_multiplier: "),
        ("llama", {"rms_norm_eps": 1e308}, InvalidWeights, "rms_norm_eps: .*less than or equal"),
        ("llama", {"rope_theta": 0}, InvalidWeights, "rope_theta: .*greater than 0"),
        ("llama", {"tie_word_embeddings": "maybe"}, InvalidWeights, "tied_embeddings: .*boolean"),
        ("olmo2", {"attention_bias": True}, UnsupportedModel, "attention_bias = True"),
        ("smollm3", {"no_rope_layers": [1, 0]}, UnsupportedModel,
         r"no_rope_layers = \[1, 0\] of 3 layers; every layer needs a 1 \(rotated\) or a 0"),
        ("smollm3", {"no_rope_layers": [1, 0, 2]}, UnsupportedModel, "no_rope_layers = .1, 0, 2."),
        ("smollm3", {"layer_types": ["sliding_attention"] * 3}, UnsupportedModel, "needs one of f"),
        ("smollm3", {"use_sliding_window": True}, UnsupportedModel, "use_sliding_window = True"),
        ("ministral", {"sliding_window": None, "layer_types": ["sliding_attention"] * 3},
         InvalidWeights, "layer_types has sliding_attention, but there is no sliding_window"),
        ("ministral3", {}, UnsupportedModel, "rope_parameters without llama_4_scaling_beta or"),
        ("olmo3", {"attention_bias": True}, UnsupportedModel, "attention_bias = True"),
        ("olmo3", {"sliding_window": None}, InvalidWeights, "sliding_window: "),
        ("exaone4", {"sliding_window_pattern": "LLLG"}, InvalidWeights, "no use"),
        ("glm4", {"partial_rotary_factor": 0.3}, InvalidWeights, "9 of head_dim 32 dimensions"),
        ("bert", {"sentence_transformers": "x"}, InvalidWeights, "sentence_transformers is not an"),
    ],
)  # fmt: skip
def test_a_configuration_that_will_not_do(family, changes, error, message):
    config = COMMON | {"model_type": family, "rms_norm_eps": 1e-5, "num_attention_heads": 4}
    config |= {"hidden_size": 128, "original_max_position_embeddings": 64}
    config |= {"partial_rotary_factor": 0.75} if family == "phi3" else {}
    with pytest.raises(error, match=message) as caught:
        RandomSource(config | changes)
    assert str(caught.value).startswith("the configuration: ") and "\n" not in str(caught.value)


def test_a_context_of_one_token_is_refused_as_what_it_is():
    with pytest.raises(InvalidInput, match="^a context needs at least 2 tokens, not 1$"):
        make_recipe(read_config(tiny_model("llama").config.to_dict()), context=1)


@pytest.mark.parametrize("name", ane_book.reference_models())
def test_reference_models_have_their_true_shapes(name):
    """Data: the parameters that each is known to have are those of its configuration."""
    model = ane_book.reference_models()[name]
    found, source = _open(name, "random")  # what `--source random` takes
    assert found == name and source.kind == "random"
    assert sum(prod(source.shape(name)) for name in source.names()) == model.parameters
    make_recipe(quant=model.recipe.quant, shard_limit=model.recipe.shard_limit)
    assert model.evidence and (model.repo_id is None) == bool(model.trained)
    place = model.repo_id or f"in this package, trained by {model.trained}"
    assert dict(model.facts())["source"].startswith(place)


def test_reference_data_is_checked_when_it_is_read():
    good = tomllib.loads((MODELS / "phi-4-mini-instruct.toml").read_text())
    read = TypeAdapter(ReferenceModel).validate_python
    assert read(good).size == "3.8 B" and read(good).recipe.quant == "int8"
    bad = {
        "recipe.bits\n  Unexpected keyword": good | {"recipe": {"bits": 3}},
        "Unexpected keyword argument": good | {"licence": "MIT"},
        "evidence\n  Field required": {key: good[key] for key in good.keys() - {"evidence"}},
    }
    for message, data in bad.items():
        with pytest.raises((ValidationError, AneBookError), match=message):
            read(data)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3e4])
@pytest.mark.parametrize("dim", [1, 3])
def test_rms_norm_is_exact_for_tiny_and_huge_activations(scale, dim):
    x = torch.randn(1, 48, 5, 32, generator=torch.Generator().manual_seed(2)).double() * scale
    expected = x / torch.sqrt((x * x).mean(dim=dim, keepdim=True) + 1e-5)
    found = rms_normalize(x.float(), dim, 1e-5)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "hunyuan_v1_dense"])
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
