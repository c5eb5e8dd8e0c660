"""Plans of mixtures of experts: programs, bytes and calls of every strategy, by hand."""

from itertools import combinations, product

from _command import ane_book as command
from _command import refused
from _long import long_but
from _taggers import SIZES, tiny_tagger
import ane_book
from ane_book.conversion.plan import Plan, find_config, plan
from ane_book.conversion.plan.expert_choices import MOST, crossing, woken
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.models.privacy_filter import PrivacyFilter
from ane_book.runtime import Tagger
import numpy as np
import pytest

MODEL = "privacy-filter"
STRATEGIES = ("dense", "packed", "dispatch", "functions")
L, E, K = 8, 128, 4  # its layers, experts, and experts of a token


def planned(experts: str, **recipe) -> Plan:
    return ane_book.plan(MODEL, experts=experts, **recipe)


def tiny(size: str, experts: str, **recipe) -> Plan:
    config = PrivacyFilter().config(tiny_tagger(size).config.to_dict())
    return plan(config, make_recipe(config, experts=experts, context=64, **recipe))


class TestWoken:
    """The expected number of distinct experts, against every way in which tokens can choose."""

    @pytest.mark.parametrize(("experts", "k", "tokens"), [(4, 2, 2), (5, 1, 3), (3, 3, 2)])
    def test_of_tokens_that_choose_all_sets_alike(self, experts, k, tokens):
        ways = list(product(combinations(range(experts), k), repeat=tokens))
        exact = sum(len({e for chosen in way for e in chosen}) for way in ways) / len(ways)
        found = woken(np.full((1, experts), k / experts), tokens)
        assert found == pytest.approx([exact])

    def test_of_a_histogram(self):
        """One expert a token, chosen 1/2, 1/3 and 1/6 of the time; in the second layer one."""
        shares, tokens = np.array([[3, 2, 1], [6, 0, 0]]) / 6, 3
        exact = sum(
            np.prod(shares[0, list(way)]) * len(set(way))
            for way in product(range(3), repeat=tokens)
        )
        assert woken(shares, tokens) == pytest.approx([exact, 1.0])

    def test_one_token_wakes_its_own_and_many_wake_all(self):
        uniform = np.full((L, E), K / E)
        assert woken(uniform, 1) == pytest.approx([K] * L)
        assert woken(uniform, 10_000) == pytest.approx([E] * L)
        assert woken(uniform, 0) == pytest.approx([0] * L)


class TestPrograms:
    def test_by_hand(self):
        """Of the full model: 8 layers of 128 experts, 640 channels, 640 wide; biases everywhere."""
        expert = 2 * (3 * 640 * 640 + 2 * 640 + 640)  # bytes in fp16 of matrices and biases
        packages = planned("dispatch").packages
        sizes = {size for name, size in packages.items() if "expert" in name}
        assert len(packages) == L * E + L + 1
        (size,) = sizes
        assert expert < size < expert + 4 * 128 + 64  # four records, aligned, and a header
        bank = planned("functions").packages
        assert list(bank) == [
            name
            for n in range(L)
            for name in (f"trunk_{n:02d}.mlpackage", f"layer_{n:02d}_experts.mlpackage")
        ] + ["trunk_08.mlpackage"]
        assert bank["layer_03_experts.mlpackage"] == E * (size - 64) + 64

    @pytest.mark.parametrize("experts", STRATEGIES)
    @pytest.mark.parametrize("size", SIZES)
    def test_hold_the_weights_of_the_model(self, size, experts):
        """Every tensor but the embedding; beside it only headers, records and alignment."""
        made = tiny(size, experts)
        model, config = PrivacyFilter(), made.config
        _, *tensors = model.tensors(config).values()
        numbers = 2 * sum(int(np.prod(shape)) for shape in tensors)
        most = 20 * config.num_layers * config.num_experts * 128 + 64 * len(made.packages)
        assert 0 < made.weight_bytes - numbers < most < 10 * numbers

    def test_in_the_order_of_a_tokens_way(self):
        made = tiny("usual", "dispatch")
        trunks = [i for i, program in enumerate(made.steps) if program.trunk is not None]
        assert trunks == [0, 9, 18] and len(made.steps) == 19
        assert [program.experts for program in made.steps[10:12]] == [range(1), range(1, 2)]
        assert [made.steps[i].layers for i in (0, 1, 9, 18)] == [
            range(1), range(1), range(1, 2), range(2, 2),
        ]  # fmt: skip


WRITTEN = [*((size, "none") for size in SIZES), ("odd", "int8")]


class TestWritten:
    """Planned, written and counted are the same numbers."""

    @pytest.mark.parametrize("experts", STRATEGIES)
    @pytest.mark.parametrize(("size", "quant"), long_but(WRITTEN, ("odd", "none"), ("odd", "int8")))
    def test_bytes_and_packages(self, tagger, size, quant, experts):
        _, bundle = tagger(size, experts=experts, quant=quant)
        made = plan(bundle.config, bundle.recipe)
        files = bundle.path.glob("*.mlpackage/Data/com.apple.CoreML/weights/weight.bin")
        assert {file.parents[3].name: file.stat().st_size for file in files} == made.packages
        parts = bundle.manifest.packages
        assert list(dict.fromkeys(part.package for part in parts)) == [*made.packages]

    @pytest.mark.parametrize("experts", STRATEGIES)
    def test_calls_and_bytes_of_a_token(self, tagger, experts):
        _, bundle = tagger("usual", experts=experts)
        made, running = plan(bundle.config, bundle.recipe), Tagger(bundle)
        for token in (0, 99):
            running.calls.clear()
            list(running.logits(np.array([token])))
            assert running.calls.total() == round(made.calls())
            programs = {program.package: program for program in made.programs}
            read = [
                times * programs[package].bytes / max(len(programs[package].experts), 1)
                for (package, _), times in running.calls.items()
            ]
            assert sum(read) == pytest.approx(made.read_bytes())

    def test_calls_of_many_tokens_by_their_own_shares(self, tagger):
        """By the histogram of a text its tokens' calls are met on average, drawn independently."""
        _, bundle = tagger("narrow", experts="dispatch")  # one expert a token
        made, running = plan(bundle.config, bundle.recipe), Tagger(bundle)
        alone = [self.woken(running, [token]) for token in range(257)]
        shares = np.mean(alone, axis=0)
        rng, counted = np.random.default_rng(0), []
        for _ in range(2000):
            drawn = rng.integers(0, 257, 3)
            counted.append(4 + np.any([alone[token] for token in drawn], axis=0).sum())
        assert np.mean(counted) == pytest.approx(made.calls(3, shares), rel=0.01)

    def woken(self, running: Tagger, tokens: list[int]) -> np.ndarray:
        """(L, E), of the tokens of a call."""
        config = running.bundle.config
        found = np.zeros((config.num_layers, config.num_experts), bool)
        layers = {(p.package, p.expert): p.layers[0] for p in running.bundle.manifest.packages}
        running.calls.clear()
        list(running.logits(np.array(tokens)))
        for package, expert in running.calls:
            if expert is not None:
                found[layers[package, expert], expert] = True
        return found


class TestCalls:
    def test_a_token_calls_the_trunk_and_its_experts(self):
        for experts in ("dispatch", "functions"):
            made = planned(experts)
            assert made.calls() == pytest.approx(L + 1 + L * K)
            assert made.woken() == pytest.approx(L * K)
            trunk = sum(program.bytes for program in made.always)
            one = next(p.bytes / len(p.experts) for p in made.programs if p.experts)
            assert made.read_bytes() == pytest.approx(trunk + L * K * one)

    def test_in_a_graph_all_experts_run_whatever_is_chosen(self):
        for experts in ("dense", "packed"):
            made = planned(experts)
            assert made.woken(1) == made.woken(99) == L * E
            assert made.calls(7) == len(made.programs)
            assert made.read_bytes(1) == made.read_bytes(99) == made.weight_bytes

    def test_many_tokens_read_all_and_call_all(self):
        made = planned("dispatch")
        assert made.calls(10_000) == pytest.approx(L * E + L + 1)
        assert made.read_bytes(10_000) == pytest.approx(made.weight_bytes)

    def test_a_router_with_favourites_wakes_fewer(self):
        made, shares = planned("dispatch"), np.zeros((L, E))
        shares[:, :K] = 1.0  # the same four always
        assert made.calls(500, shares) == L + 1 + L * K
        assert made.read_bytes(500, shares) == made.read_bytes(1)
        shares = np.linspace(0, 2 * K / E, E)[None].repeat(L, 0)
        assert made.calls(1, shares) == pytest.approx(made.calls(1))
        assert made.calls(20, shares) < made.calls(20)

    def test_models_without_experts(self):
        made = ane_book.plan("smollm2-135m-instruct")
        assert (made.woken(9), made.strategies) == (0.0, {})
        assert made.calls(9) == len(made.programs)
        assert made.read_bytes(9) == made.weight_bytes


class TestCrossing:
    def test_is_where_reading_becomes_equal(self):
        apart, whole = planned("dispatch"), planned("packed")
        tokens = crossing(apart, whole)
        assert apart.read_bytes(tokens - 1) < whole.weight_bytes <= apart.read_bytes(tokens)
        assert 200 < tokens < 400  # by then 128 * (31/32)**tokens experts sleep: next to none

    def test_is_never_where_an_expert_is_not_chosen(self):
        shares = np.full((L, E), K / E)
        shares[:, 0] = 0.0
        assert crossing(planned("dispatch"), planned("packed"), shares) is None
        assert MOST > 10_000


class TestLines:
    def test_the_command_shows_all_strategies(self):
        said = command("plan", MODEL, "--experts", "dispatch", "--limit", "250MB").stdout
        assert "9 programs of what is around experts" in said
        assert "1,024 programs: 2.5 MB each" in said
        assert "dispatch: 1,033 programs; 41 calls, 101.2 MB a token" in said
        assert "functions" not in said  # its packages are beyond the limit
        assert "experts apart read as much as packed" not in said  # and so are whole layers

    def test_of_every_strategy(self):
        for experts in STRATEGIES:
            lines = [text for _, text in planned(experts).facts()]
            told = [text.split(":")[0] for text in lines if " a token; " in text]
            assert told == [*STRATEGIES]
            assert any(text.startswith("experts apart read as much") for text in lines)


class TestRefusals:
    def test_another_partition(self):
        message = refused("plan", MODEL, "--experts", "functions", "--partition", "whole")
        assert "experts 'functions' cuts every layer at its mixture" in message

    def test_an_expert_beyond_the_limit(self):
        with pytest.raises(InvalidInput, match=r"experts of layer 0 has 315.1 MB .* raise"):
            plan(find_config(MODEL), make_recipe(experts="functions", shard_limit="250MB"))

    def test_a_trunk_beyond_the_limit(self):
        with pytest.raises(InvalidInput, match=r"what is around the experts of layer 0 has 2.8 MB"):
            plan(find_config(MODEL), make_recipe(experts="dispatch", shard_limit="2.6MB"))

    def test_a_model_without_experts(self):
        message = refused("plan", "smollm2-135m-instruct", "--experts", "dispatch")
        assert "experts goes with mixtures of experts" in message
