"""Weights stored with a text at hand: error feedback, what it rests on, and bits by a budget."""

import itertools
import json

from _long import long_but
import ane_book
from ane_book.conversion.plan import plan
from ane_book.conversion.quantize import allotment, calibrate
from ane_book.conversion.quantize.allotment import Choice, allot
from ane_book.conversion.quantize.calibrate import Calibration
from ane_book.conversion.quantize.encoded import Encoded
from ane_book.conversion.quantize.encoded import encode as encode_plainly
from ane_book.conversion.quantize.feedback import DAMPING, encode, moments_of
from ane_book.conversion.quantize.kmeans import centres
from ane_book.conversion.quantize.schemes import AUTO, SCHEMES
from ane_book.errors import InvalidInput
from ane_book.evidence import loss
from ane_book.evidence.parity import check_parity
from ane_book.models import read_config
from ane_book.options import Recipe
from ane_book.weights import open_source
from mlprogram.package.reader import Package
import numpy as np
import pytest
import torch

WAYS = AUTO | {"int4-channel": SCHEMES["int4-channel"]}


def likely_inputs(channels: int, tokens: int = 4000) -> torch.Tensor:
    """Inputs (tokens, C) as models have them: alike, and a few large ones."""
    draw = torch.Generator().manual_seed(2)
    mix = torch.randn(channels, channels, generator=draw) / channels**0.5
    x = torch.randn(tokens, channels, generator=draw) @ (torch.eye(channels) + 2 * mix)
    return x * torch.exp(torch.randn(channels, generator=draw))


def rows(outputs: int, channels: int) -> torch.Tensor:
    draw = np.random.default_rng(3)
    return torch.from_numpy(draw.standard_t(4, (outputs, channels)) / 10).half().float()


def decoded(encoded: Encoded) -> torch.Tensor:
    """What is stored, (O, C)."""
    return encoded.weight().flatten(1)


class TestFeedback:
    X, W = likely_inputs(96), rows(64, 96)
    H = X.T @ X / len(X)

    @pytest.mark.parametrize("name", WAYS)
    def test_outputs_are_nearer_than_by_rounding(self, name):
        weight, scheme = self.W[:, :, None, None], WAYS[name]
        with_text, _ = encode(weight, scheme, moments_of(self.H, torch.ones(64)))
        errors = [
            ((decoded(stored) - self.W) @ self.X.T).square().mean()
            for stored in (with_text, encode_plainly(weight, scheme))
        ]
        assert errors[0] < 0.5 * errors[1]

    @pytest.mark.parametrize("name", WAYS)
    def test_the_loss_it_expects_is_that_of_the_error(self, name):
        """Half of tr(D H D'), with the damping, each output by how much the loss feels it."""
        felt = torch.linspace(0.1, 3, 64)
        stored, expected = encode(self.W[:, :, None, None], WAYS[name], moments_of(self.H, felt))
        D = decoded(stored) - self.W
        H = self.H + DAMPING * self.H.diagonal().mean() * torch.eye(96)
        assert expected == pytest.approx(float(((D @ H) * D).sum(1) @ felt / 2), rel=2e-3)

    def test_inputs_that_are_never_there_cost_nothing(self):
        H = self.H.clone()
        H[5], H[:, 5] = 0, 0
        stored, expected = encode(
            self.W[:, :, None, None], SCHEMES["int4-channel"], moments_of(H, torch.ones(64))
        )
        assert np.isfinite(expected) and decoded(stored).isfinite().all()
        _, nothing = encode(
            self.W[:, :, None, None], AUTO["lut4-g8"],
            moments_of(torch.zeros(96, 96), torch.ones(64)),
        )  # fmt: skip
        assert nothing == pytest.approx(0, abs=1e-6)

    def test_a_weight_counts_as_often_as_it_says(self):
        """k-means of numbers with whole weights is that of the numbers so often."""
        draw = np.random.default_rng(0)
        numbers = torch.from_numpy(draw.standard_normal((3, 200)))
        counts = torch.from_numpy(draw.integers(1, 6, (3, 200)))
        for row, often in zip(numbers, counts, strict=True):
            weighted = centres(row[None], 16, often[None].double())
            repeated = centres(row.repeat_interleave(often)[None], 16)
            errors = [
                float((often * (row[:, None] - found).abs().amin(dim=1).square()).sum())
                for found in (weighted, repeated)
            ]
            assert errors[0] == pytest.approx(errors[1], rel=0.02)


class TestAllot:
    def some(self, seed: int) -> list[list[Choice]]:
        draw = np.random.default_rng(seed)
        return [
            [
                Choice(name, int(size * bits), float(part * scale))
                for name, bits, part in zip("abc", (4, 6, 8), (1, 0.08, 0.01), strict=True)
            ]
            for size, scale in zip(draw.integers(5, 40, 5), draw.exponential(1, 5), strict=True)
        ]

    @pytest.mark.parametrize("seed", range(5))
    def test_none_of_its_bytes_does_better(self, seed):
        matrices = self.some(seed)
        for budget in range(600, 900, 37):
            fits = [
                chosen
                for chosen in itertools.product(*matrices)
                if sum(choice.bytes for choice in chosen) <= budget
            ]
            found = allot(matrices, budget)
            assert (found is None) == (not fits)
            if found:
                spent = sum(choice.bytes for choice in found)
                assert spent <= budget
                least = min(sum(c.loss for c in chosen) for chosen in fits
                            if sum(c.bytes for c in chosen) <= spent)  # fmt: skip
                assert sum(choice.loss for choice in found) <= 1.25 * least

    def test_what_is_no_better_is_not_bought(self):
        one = [Choice("small", 4, 0.1), Choice("large", 8, 0.1)]
        assert [c.scheme for c in allot([one], 100)] == ["small"]


@pytest.fixture(scope="module")
def calibrated(tiny, tmp_path_factory):
    """A tiny Llama by a budget that buys several schemes, its text cut short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allotment, "TOKENS", 1024)
        out = tmp_path_factory.mktemp("calibrated") / "bundle"
        return ane_book.convert(
            str(tiny("llama")[1]), out=out, quant="auto:6", context=32, prefill=8
        )


class TestCalibration:
    def test_moments_are_those_of_the_whole_model(self, tiny, tmp_path):
        """Inputs of layer 1 by hooks on `transformers`; gradients by its own backward pass."""
        model, folder = tiny("llama")
        source = open_source(folder)
        config = read_config(source.config())
        ids = torch.randint(0, 250, (6, 128), generator=torch.Generator().manual_seed(1))
        np.save(tmp_path / "embedding.npy", source.tensor("model.embed_tokens.weight").astype("f2"))
        passes = Calibration(config, tmp_path, source.tensor, ids.flatten().tolist())
        assert len([*passes.run()]) == 2 * config.num_layers + 1
        found = passes.of(1)

        inputs, down = [], model.model.layers[1].mlp.down_proj
        model.model.layers[1].mlp.up_proj.register_forward_hook(
            lambda _, x, y: inputs.append(x[0].detach()[0])
        )
        draw, squares = torch.Generator().manual_seed(0), 0
        outputs = []
        down.register_forward_hook(lambda _, x, y: outputs.append(y))
        for i, window in enumerate(ids):
            embedded = model.model.embed_tokens(window[None]).requires_grad_(True)
            logits = model(inputs_embeds=embedded).logits[0]
            if i >= calibrate.GRADED:
                continue
            drawn = torch.multinomial(logits.detach().softmax(1), 1, generator=draw)[:, 0]
            outputs[-1].retain_grad()
            torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
            squares = squares + outputs[-1].grad[0].square().sum(0)
        x = torch.cat(inputs)
        wanted = x.T @ x / len(x)
        moments, order = found["feed_forward.gate_up.weight"], wanted.diagonal().argsort().flip(0)
        assert torch.equal(moments.order, order)
        held = torch.linalg.inv((moments.factor.T @ moments.factor).double()).float()
        held.diagonal().sub_(DAMPING * wanted.diagonal().mean())
        torch.testing.assert_close(held, wanted[order][:, order], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(
            found["feed_forward.down.weight"].outputs, squares / (calibrate.GRADED * 128),
            rtol=0.02, atol=1e-7,
        )  # fmt: skip

    def test_the_text_is_none_of_those_that_quality_is_measured_on(self):
        ours = calibrate.calibration_text()
        for other in map(loss.text, loss.TEXTS):
            lines = {line.strip() for line in other.splitlines() if len(line) > 40}
            assert not [line for line in lines if line in ours]


class TestBundle:
    def test_it_keeps_to_its_budget_and_says_what_it_chose(self, calibrated):
        table = json.loads((calibrated.path / "schemes.json").read_text())
        config = calibrated.config
        assert len(table) == 4 * config.num_layers + 1
        assert len({choice["scheme"] for choice in table.values()}) > 1
        found = {}
        for package in calibrated.path.glob("*.mlpackage"):
            for operation in Package(package).functions["decode"].operations():
                if operation.type.startswith("constexpr"):
                    values = [value for (value,) in operation.inputs.values()]
                    size = sum(value.stored_bytes or value.array().nbytes for value in values)
                    found[package.name, operation.name] = values[0].type.dtype, size
        sizes = sorted(size for _, size in found.values())
        assert sizes == sorted(choice["bytes"] for choice in table.values())
        widths = sorted(int(dtype.lstrip("uint")) for dtype, _ in found.values())
        assert widths == sorted(AUTO[c["scheme"]].bits for c in table.values())
        weights = sum(np.prod(tensor) for tensor in shapes(config))
        assert sum(sizes) <= 6 * weights / 8
        assert not [*calibrated.path.glob("calibration_*")]

    def test_its_source_gives_the_same_bytes_once_more(self, calibrated, tiny, monkeypatch):
        """Parity takes them for a fault of the weights where the budget is spent otherwise."""
        monkeypatch.setattr(allotment, "TOKENS", 1024)
        parity = check_parity(calibrated, tiny("llama")[1])
        assert parity.passed, parity.reason

    def test_the_plan_is_an_upper_bound(self, calibrated):
        planned = plan(calibrated.config, calibrated.recipe)
        written = sum(file.stat().st_size for file in calibrated.path.rglob("weight.bin"))
        assert 0.8 * planned.weight_bytes < written <= planned.weight_bytes

    def test_an_interrupted_conversion_ends_as_one_in_a_go(
        self, tiny, calibrated, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(allotment, "TOKENS", 1024)

        def convert(stop_at: str) -> ane_book.Bundle:
            def stop(description: str, done: int, total: int) -> None:
                assert 0 < done <= total
                if stop_at and description.startswith(stop_at):
                    raise KeyboardInterrupt

            return ane_book.convert(
                str(tiny("llama")[1]), out=tmp_path / "b", quant="auto:6", context=32, prefill=8,
                progress=stop,
            )  # fmt: skip

        for place in ("sensitivity of layer 2", "layer 2"):
            with pytest.raises(KeyboardInterrupt):
                convert(place)
        found = convert("")
        for name in calibrated.manifest.files:
            if not name.endswith(".npz"):  # zip archives carry the time
                same = (found.path / name).read_bytes() == (calibrated.path / name).read_bytes()
                assert same, name


def test_no_program_is_beyond_the_limit(tiny, tmp_path, monkeypatch):
    """Layers are not alike, and what one does not need goes to others as far as there is room."""
    monkeypatch.setattr(allotment, "TOKENS", 256)
    config = read_config(open_source(tiny("llama")[1]).config())
    options = {"quant": "auto:6", "context": 32, "prefill": 8}
    one = plan(config, Recipe(shard_limit=30_000, **options)).shards[0]
    made = ane_book.convert(
        str(tiny("llama")[1]), out=tmp_path / "b", shard_limit=one.bytes, **options
    )
    assert len(made.manifest.shards) == config.num_layers
    sizes = [file.stat().st_size for file in made.path.rglob("weight.bin")]
    assert max(sizes) <= one.bytes


@pytest.mark.parametrize(
    ("quant", "head"), long_but([("auto:6", "int8"), ("none", "auto:6")], ("none", "auto:6"))
)
def test_layers_and_head_may_have_a_say_of_their_own(tiny, tmp_path, monkeypatch, quant, head):
    monkeypatch.setattr(allotment, "TOKENS", 256)
    made = ane_book.convert(
        str(tiny("llama")[1]), out=tmp_path / "b", quant=quant, quant_head=head,
        context=32, prefill=8,
    )  # fmt: skip
    table = json.loads((made.path / "schemes.json").read_text())
    assert {name.split(".")[0] for name in table} == {"head" if quant == "none" else "layers"}
    forms = {
        part: {
            operation.type
            for operation in Package(made.path / package).functions["decode"].operations()
            if operation.type.startswith("constexpr")
        }
        for part, package in [("layers", "layers_00-03.mlpackage"), ("head", "head.mlpackage")]
    }
    assert bool(forms["layers"]) == (quant != "none")
    of_head = "constexpr_blockwise_shift_scale" if head == "int8" else "constexpr_lut_to_dense"
    assert forms["head"] == {of_head}


def test_too_few_bytes_for_small_matrices_are_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(allotment, "TOKENS", 256)
    options = {"quant": "auto:4.1", "context": 32, "prefill": 8}
    with pytest.raises(InvalidInput, match="too few for these matrices, .* raise the bits"):
        ane_book.convert(str(tiny("llama")[1]), out=tmp_path / "b", **options)


def shapes(config) -> list[tuple[int, int]]:
    C, F, Q, KV = config.widths
    layer = [(Q + 2 * KV, C), (C, Q), (2 * F, C), (C, F)]
    return config.num_layers * layer + [(config.vocab_size, C)]
