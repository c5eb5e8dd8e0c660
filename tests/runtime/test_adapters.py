"""Adapters in slots against `transformers` with the adapter merged into its weights."""

import json

from _adapters import merged, random_adapter, write_adapter
from _long import long_but
from _tiny import prompt
from ane_book.conversion.plan import plan
from ane_book.errors import AneBookError, InvalidInput, InvalidWeights
from ane_book.evidence.parity import check_parity
from ane_book.models.base.lora import slot_shapes
from ane_book.runtime import Session
from ane_book.runtime.adapters import read_adapter
from mlprogram import MLProgram
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
import torch

#: Weights that are joined, normed whole, beside windows, or with a factor in them.
OWN = ("phi3", "olmo2", "gemma3_text", "granite")
R = 6
IDS = prompt(21)

RECIPES = {
    "state, tiers, guesses, shards": {
        "kv": "state", "tiers": (16,), "verify": 4, "shard_limit": 100_000
    },
    "host, tiers, tanh": {"kv": "host", "tiers": (16,), "silu": "tanh"},
    "one function": {"kv": "state", "functions": "one", "prefill": None},
    "select, by columns": {"kv": "state", "state_write": "select", "form": "apple"},
    "whole, a head in parts": {"kv": "host", "partition": "whole", "head_rows": 100},
}  # fmt: skip


def own_logits(model, ids=IDS) -> np.ndarray:
    """Logits (n, V) of the model."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()


def expected_logits(model, folder, ids=IDS) -> np.ndarray:
    """Logits (n, V) of the model with the adapter merged into its weights."""
    return own_logits(merged(model, folder), ids)


def change(folder, edit, alpha: float = 8.0) -> None:
    """Change an adapter's tensors by a function of name and tensor, and its lora_alpha."""
    file, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    save_file({name: edit(name, tensor) for name, tensor in load_file(file).items()}, file)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": alpha}))


def logits(session: Session, ids=IDS) -> np.ndarray:
    session.reset()
    return session.logits(ids)


def near(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the rounding of single precision, over some hundred products in a row."""
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.fixture(scope="module")
def slotted(tiny_bundle):
    """A tiny model, its bundle without slots and that with slots of rank R."""
    plain = tiny_bundle("llama", kv="state")[1]
    return *tiny_bundle("llama", kv="state", lora_slots=R), plain


@pytest.fixture
def adapter(slotted, tmp_path):
    """An adapter for it, of rank 4."""
    return write_adapter(slotted[0], tmp_path / "adapter")


class TestNumbers:
    def test_each_adapter_is_as_merged_and_none_is_none(self, slotted, tmp_path):
        """One session takes them in turn, so that each also overwrites what the last one left."""
        model, bundle, plain = slotted
        session, base = Session(bundle, precision="fp32"), Session(plain, precision="fp32")
        own = logits(base)
        for seed in range(12):
            folder = random_adapter(model, tmp_path / str(seed), seed, R)
            session.use(folder)
            assert session.position == 0
            expected = expected_logits(model, folder)
            near(logits(session), expected)
            assert np.abs(expected - own).max() > 1e-3 * np.abs(own).max()
            if seed % 4 == 0:
                session.use(None)
                np.testing.assert_array_equal(logits(session), own)

    @pytest.mark.parametrize("family", long_but(OWN, "phi3"))
    def test_every_kind_of_dense_family(self, family, tiny_bundle, tmp_path):
        model, bundle = tiny_bundle(family, kv="host", lora_slots=R)
        session, folder = Session(bundle, precision="fp32"), write_adapter(model, tmp_path, r=R)
        near(logits(session), own_logits(model))
        session.use(folder)
        near(logits(session), expected_logits(model, folder))

    def test_half_precision(self, slotted, adapter):
        model, bundle, plain = slotted
        session = Session(bundle)
        np.testing.assert_array_equal(logits(session), logits(Session(plain)))
        session.use(adapter)
        found, expected = logits(session), expected_logits(model, adapter)
        assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()

    @pytest.mark.parametrize("recipe", long_but(RECIPES, "one function"))
    def test_they_go_with_every_other_option(self, recipe, tiny_bundle, tmp_path):
        options = RECIPES[recipe]
        model, bundle = tiny_bundle("llama", lora_slots=R, **options)
        session, folder = Session(bundle, precision="fp32"), write_adapter(model, tmp_path)
        near(logits(session), own_logits(model))
        session.use(folder)
        near(logits(session), expected_logits(model, folder))
        guessed = "lookup" if "verify" in bundle.manifest.functions else None
        answers = [session.generate(IDS[:5], draft, max_tokens=20) for draft in (None, guessed)]
        assert answers[0].token_ids == answers[1].token_ids
        ids = [*IDS[:5], *answers[0].token_ids[:-1]]
        said = expected_logits(model, folder, ids)[4:].argmax(axis=1)
        assert said.tolist() == answers[0].token_ids
        if "tiers" in options:
            assert all(session.tiers.values())
        assert check_parity(bundle).passed

    @pytest.mark.parametrize("quant", long_but(("int8", "lut6"), "int8"))
    def test_quantised_weights_below_an_adapter_in_fp16(self, quant, tiny_bundle, tmp_path):
        """The adapter changes the logits by what it changes those of the weights as they were."""
        options = {"kv": "state", "quant": quant}
        model, bundle = tiny_bundle("llama", lora_slots=R, **options)
        session, folder = Session(bundle, precision="fp32"), write_adapter(model, tmp_path)
        plain = Session(tiny_bundle("llama", **options)[1], precision="fp32")
        own = logits(session)
        np.testing.assert_array_equal(own, logits(plain))
        session.use(folder)
        expected = expected_logits(model, folder) - own_logits(model)
        found = logits(session) - own
        assert np.corrcoef(expected.ravel(), found.ravel())[0, 1] > 0.9

    def test_the_likeliest_token(self, slotted, adapter, tiny_bundle):
        bundle = tiny_bundle("llama", kv="state", lora_slots=R, argmax_output=True)[1]
        session = Session(bundle, precision="fp32")
        session.use(adapter)
        assert session.prefill(IDS) == expected_logits(slotted[0], adapter)[-1].argmax()


class TestSessions:
    def test_sessions_of_one_bundle_have_adapters_of_their_own(self, slotted, tmp_path):
        model, bundle, _ = slotted
        folders = [write_adapter(model, tmp_path / str(seed), seed=seed) for seed in (1, 2)]
        sessions = [Session(bundle, precision="fp32") for _ in folders]
        for session, folder in zip(sessions, folders, strict=True):
            session.use(folder)
        expected = [expected_logits(model, folder) for folder in folders]
        for i, token in enumerate(IDS):
            for session, own in zip(sessions, expected, strict=True):
                near(session.logits([token])[0], own[i])

    def test_an_adapter_forgets_what_another_one_has_cached(self, slotted, adapter):
        session = Session(slotted[1], precision="fp32")
        session.generate(IDS, max_tokens=3)
        session.use(adapter)
        assert session.position == 0
        found = session.generate(IDS, max_tokens=8, reuse_cache=True).token_ids
        fresh = Session(slotted[1], precision="fp32")
        fresh.use(adapter)
        assert found == fresh.generate(IDS, max_tokens=8).token_ids

    def test_one_that_is_refused_changes_nothing(self, slotted, adapter, tmp_path):
        session = Session(slotted[1], precision="fp32")
        session.use(adapter)
        before = logits(session)
        wide = write_adapter(slotted[0], tmp_path / "wide", r=R + 1)
        with pytest.raises(InvalidInput, match=f"r {R + 1} is more than the {R} of the bundle's s"):
            session.use(wide)
        assert session.position == len(IDS)
        np.testing.assert_array_equal(logits(session), before)


class TestRefused:
    def test_a_bundle_without_slots(self, slotted, adapter):
        session = Session(slotted[2])
        with pytest.raises(InvalidInput, match="without slots for an adapter .*--lora-slots"):
            session.use(adapter)
        session.use(None)

    def test_an_adapter_of_another_model_or_bundle(self, slotted, adapter, tiny, tiny_bundle):
        other = tiny("llama", hidden_size=128)[0]
        folder = write_adapter(other, adapter.with_name("other"))
        with pytest.raises(InvalidWeights, match="the adapter is of another model"):
            read_adapter(folder, slotted[1])
        deeper = write_adapter(tiny("llama", num_hidden_layers=4)[0], adapter.with_name("deep"))
        with pytest.raises(InvalidWeights, match=r"layers\.3\..* has no slot .* in 3 layers"):
            read_adapter(deeper, slotted[1])
        another = tiny_bundle("llama", kv="state", lora_slots=R, argmax_output=True)[1]
        with pytest.raises(InvalidInput, match="was read for another bundle"):
            Session(another).use(read_adapter(adapter, slotted[1]))

    @pytest.mark.parametrize(
        ("edit", "alpha"),
        [
            (lambda name, tensor: tensor.fill_(float("nan")), 8.0),
            (lambda name, tensor: tensor.fill_(1e30), 8.0),
            (lambda name, tensor: tensor, 1e308),
            (lambda name, tensor: tensor.mul("lora_A" in name), 1e308),  # zeros times infinity
        ],
    )
    def test_what_half_precision_does_not_hold(self, edit, alpha, slotted, adapter):
        change(adapter, edit, alpha)
        with pytest.raises(InvalidWeights, match="numbers that fp16 does not hold"):
            read_adapter(adapter, slotted[1])

    def test_what_overflows_within_gives_no_answer(self, slotted, adapter):
        """Every number fits, and their products do not."""
        change(adapter, lambda name, tensor: torch.full_like(tensor, 60_000), 4.0)
        session = Session(slotted[1])
        session.use(adapter)
        with pytest.raises(AneBookError, match="logits hold NaN: something overflowed fp16"):
            session.generate(IDS, max_tokens=2)


class TestBytes:
    def test_plan_says_what_every_call_takes(self, slotted):
        bundle = slotted[1]
        (part,) = bundle.manifest.shards
        names = slot_shapes(bundle.config, R).keys()
        for function in part.functions:
            program = MLProgram(bundle.path / part.package, function)
            own = [2 * int(np.prod(program.inputs[name].shape)) for name in names]
            assert sum(own) == plan(bundle.config, bundle.recipe).adapter_bytes

    def test_the_weights_are_those_of_a_bundle_without(self, slotted):
        _, bundle, plain = slotted
        weights = [n for n in plain.manifest.sha256 if n.endswith("weight.bin")]
        assert weights
        for name in weights:
            assert bundle.manifest.sha256[name] == plain.manifest.sha256[name]
