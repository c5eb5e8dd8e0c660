"""Decoders with mixtures of experts in some layers: their bundles against `transformers`."""

from _tiny import ROUTED, assert_cut_anywhere, greedy, margins, prompt, tiny_model, write_checkpoint
from ane_book.conversion.plan import plan
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput, InvalidWeights, UnsupportedModel
from ane_book.evidence.parity import check_parity
from ane_book.models import find, read_config
from ane_book.models.base.experts import layers
from ane_book.models.base.experts.layers import SigmoidRouter, SoftmaxRouter
from ane_book.runtime import Session
from ane_book.weights import open_source
from ane_book.weights.random import RandomSource
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from test_models import decoder_of, logits
import torch

CONTEXT, PREFILL = 48, 8

#: Every layer a mixture, as `experts="dispatch"` needs; and gates that no sum divides.
ALL = {
    "qwen3_moe": (("mlp_only_layers", None), ("norm_topk_prob", True)),
    "lfm2_moe": (("num_dense_layers", 0), ("norm_topk_prob", False)),
}
RECIPES = {
    "state": {"kv": "state", "verify": 4, "shard_limit": 150_000, "tiers": (16,)},
    "host": {"kv": "host", "form": "apple", "silu": "tanh"},
    "one": {"kv": "host", "functions": "one", "verify": 4, "prefill": 4},
    "dispatch": {"kv": "state", "experts": "dispatch", "tiers": (16,)},
    "dispatch host": {"kv": "host", "experts": "dispatch", "form": "apple", "verify": 4},
}


@pytest.fixture(scope="module")
def made(tiny_bundle):
    """`made(family, recipe)` -> (transformers model, bundle), converted once."""

    def make(family: str, recipe: str, **more):
        options = {"context": CONTEXT, "prefill": PREFILL} | RECIPES[recipe] | more
        return tiny_bundle(family, ALL[family] if "dispatch" in recipe else (), **options)

    return make


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", ROUTED)
def test_tokens_and_prompts_cut_anywhere_are_those_of_transformers(made, family, recipe):
    """And in half precision the logits of tokens whose choice of experts is clear; with the
    engine's own activations, those of most."""
    model, bundle = made(family, recipe)
    ids = greedy(model, prompt(2 * PREFILL + 3), CONTEXT - 2 * PREFILL - 3)
    session = Session(bundle, precision="fp32")
    expected = assert_cut_anywhere(model, session, ids[: 2 * PREFILL + 3])
    session.rewind(3)
    assert abs(session.logits(ids[3 : 2 * PREFILL + 3]) - expected[3:]).max() < 1e-3
    session.reset()
    answer = session.generate(ids[: 2 * PREFILL + 3], max_tokens=CONTEXT)
    assert answer.token_ids == ids[2 * PREFILL + 3 :]
    expected, clear = model(torch.tensor([ids])).logits[0], margins(model, ids) > 0.004
    assert clear.float().mean() > 0.6
    half, engine = (
        torch.cosine_similarity(torch.from_numpy(Session(bundle, p).logits(ids)), expected, dim=1)
        for p in ("fp16", "ane")
    )
    assert half[clear].min() > 0.999 and engine.median() > 0.98


@pytest.mark.parametrize("family", ROUTED)
def test_guesses_change_no_token(made, family):
    session = Session(made(family, "state")[1], precision="fp32")
    plain = session.generate("xyxyxyxy", max_tokens=30)
    guessed = session.generate("xyxyxyxy", max_tokens=30, draft="lookup")
    assert guessed.token_ids == plain.token_ids and guessed.calls < plain.calls


@pytest.mark.parametrize("recipe", ["state", "dispatch", "dispatch host"])
@pytest.mark.parametrize("family", ROUTED)
def test_parity_and_the_bytes_that_were_planned(made, family, recipe):
    _, bundle = made(family, recipe)
    found = check_parity(bundle)
    assert found.passed, found.reason
    planned = plan(bundle.config, bundle.recipe)
    files = bundle.path.rglob("weight.bin")
    assert {f.parents[3].name: f.stat().st_size for f in files} == planned.packages
    E, mixtures = bundle.config.num_experts, 3 if "dispatch" in recipe else 2
    assert planned.woken(CONTEXT * 100) == pytest.approx(E * mixtures)


@pytest.mark.parametrize("family", ROUTED)
def test_a_token_calls_its_experts_alone(made, family):
    model, bundle = made(family, "dispatch")
    ids = prompt(30)
    session = Session(bundle, precision="fp32")
    session.logits(ids[:-1])
    session.calls.clear()
    session.decode(ids[-1])
    woken = {p.package for p in bundle.manifest.packages if p.expert is not None}
    woken &= {package for package, calls in session.calls.items() if calls}
    output = model(torch.tensor([ids]), output_router_logits=True)
    biases = [value for name, value in model.named_buffers() if name.endswith("expert_bias")]
    expected = set()
    for i, scores in enumerate(output.router_logits):
        by = scores[-1].sigmoid() + biases[i] if biases else scores[-1]
        chosen = by.topk(model.config.num_experts_per_tok).indices.tolist()
        expected |= {f"layer_{i:02d}_expert_{expert:03d}.mlpackage" for expert in chosen}
    assert woken == expected


@pytest.mark.parametrize("quant", ["int8", "lut8"])  # with fewer, tokens take other experts
@pytest.mark.parametrize("family", ROUTED)
def test_quantised_programs_are_what_pytorch_says_of_their_weights(tiny_bundle, family, quant):
    options = {"context": CONTEXT, "prefill": PREFILL}
    plain, few = (tiny_bundle(family, quant=q, **options)[1] for q in ("none", quant))
    found = check_parity(few)
    assert found.passed, found.reason
    sizes = [sum(n for f, n in b.manifest.files.items() if "weight" in f) for b in (plain, few)]
    assert sizes[1] < 0.7 * sizes[0]


def one_less(scores, k):
    """A token takes one expert too few."""
    return CHOSEN(scores, k - 1)


def biased(self, x):
    """The gate is what the choice was made by."""
    shares = torch.sigmoid(self.scores(x)) + self.balance
    gates = layers.of_chosen(shares, CHOSEN(shares, self.k))
    return gates / gates.sum(dim=1, keepdim=True) * self.scale


def unbiased(self, x):
    """The bias takes no part in the choice."""
    self.balance.data.zero_()
    return SIGMOID(self, x)


def unnormed(self, x):
    """The gates of a token are not divided by their sum, or are where they should not be."""
    self.normed = not self.normed
    return (SIGMOID if isinstance(self, SigmoidRouter) else SOFTMAX)(self, x)


CHOSEN, SIGMOID, SOFTMAX = layers.chosen, SigmoidRouter.forward, SoftmaxRouter.forward
ERRORS = {
    ("qwen3_moe", "an expert too few"): (layers, "chosen", one_less),
    ("qwen3_moe", "gates divided by their sum"): (SoftmaxRouter, "forward", unnormed),
    ("qwen3_moe", "gates not divided by their sum"): (SoftmaxRouter, "forward", unnormed),
    ("lfm2_moe", "an expert too few"): (layers, "chosen", one_less),
    ("lfm2_moe", "the bias in the gates"): (SigmoidRouter, "forward", biased),
    ("lfm2_moe", "no bias in the choice"): (SigmoidRouter, "forward", unbiased),
    ("lfm2_moe", "gates not divided by their sum"): (SigmoidRouter, "forward", unnormed),
}


@pytest.mark.parametrize(("family", "error"), ERRORS)
def test_a_broken_router_has_other_logits(monkeypatch, family, error):
    normed = error != "gates divided by their sum"
    model, ids = tiny_model(family, norm_topk_prob=normed), prompt(40)
    expected, decoder = model(torch.tensor([ids])).logits[0], decoder_of(model)
    assert abs(logits(decoder, model, ids, [40], 64) - expected).max() < 1e-4
    monkeypatch.setattr(*ERRORS[family, error])
    for layer in decoder.layers:
        layer.eval()
    assert abs(logits(decoder, model, ids, [40], 64) - expected).max() > 0.01


@pytest.mark.parametrize("step", [1, 2, 3])
def test_which_layers_are_dense_is_where_transformers_looks_for_it(step):
    model = tiny_model("qwen3_moe", num_hidden_layers=4, decoder_sparse_step=step)
    config = read_config(model.config.to_dict())
    mixed = [i for i, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "experts")]
    assert find("qwen3_moe").signatures(config).mixed == mixed
    ids = prompt(20)
    expected = model(torch.tensor([ids])).logits[0]
    assert abs(logits(decoder_of(model), model, ids, [20], 32) - expected).max() < 1e-4


@pytest.mark.parametrize("family", ROUTED)
def test_files_hold_experts_one_by_one_or_as_stacks(tmp_path, family):
    """As they are published, and as `transformers` 5 has them in memory."""
    model = tiny_model(family)
    folder = write_checkpoint(model, tmp_path / "one by one")
    stacked = write_checkpoint(model, tmp_path / "stacked")
    state = {n: v.contiguous() for n, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, stacked / "model.safetensors")
    assert any(".experts.6." in name for name in load_file(folder / "model.safetensors"))
    for place in (folder, stacked):
        source = open_source(place)
        assert sorted(source.names()) == sorted(state)
        for name in source.names():
            np.testing.assert_array_equal(source.tensor(name), state[name].numpy(), err_msg=name)


@pytest.mark.parametrize("family", ROUTED)
def test_an_expert_that_is_missing_is_named(tmp_path, family):
    folder = write_checkpoint(tiny_model(family), tmp_path / "checkpoint")
    state = load_file(folder / "model.safetensors")
    lost = next(name for name in state if ".2." in name and ".experts.4." in name)
    del state[lost]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(InvalidWeights, match=f"tensor {lost} is missing"):
        open_source(folder)


@pytest.mark.parametrize(
    ("family", "changes", "error", "message"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 8}, InvalidWeights, "takes 8 experts of 7"),
        ("qwen3_moe", {"num_local_experts": 3000}, InvalidWeights, "num_experts: .*2048"),
        ("qwen3_moe", {"num_local_experts": 2000, "num_hidden_layers": 60}, InvalidWeights,
         "59 layers of 2000 experts"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, UnsupportedModel, "decoder_sparse_step = 0 wi"),
        ("qwen3_moe", {"mlp_only_layers": 3}, UnsupportedModel, "mlp_only_layers = 3; a number"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, InvalidWeights, "expert_size: .*greater"),
        ("lfm2_moe", {"routed_scaling_factor": 0.0}, InvalidWeights, "gate_scale: .*greater"),
        ("lfm2_moe", {"conv_bias": True}, UnsupportedModel, "conv_bias = True is not supported"),
        ("lfm2_moe", {"num_dense_layers": None}, InvalidWeights, "a value that is no use"),
    ],
)  # fmt: skip
def test_a_configuration_that_will_not_do(family, changes, error, message):
    with pytest.raises(error, match=message):
        RandomSource(tiny_model(family).config.to_dict() | changes)


@pytest.mark.parametrize("family", ROUTED)
def test_what_goes_with_dense_models_alone_is_refused_by_name(family):
    config = read_config(tiny_model(family).config.to_dict())
    with pytest.raises(InvalidInput, match="layer [01] of this model has none; take 'packed'"):
        plan(config, make_recipe(config, experts="dispatch"))
    with pytest.raises(InvalidInput, match="quant auto:5 chooses for models whose layers are sev"):
        make_recipe(config, quant="auto:5")
    with pytest.raises(InvalidInput, match="merge the adapter into the weights instead"):
        make_recipe(config, lora_slots=4)
