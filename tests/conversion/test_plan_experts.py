"""Plans of mixtures of experts: programs, bytes and calls of every strategy, by hand."""

from itertools import combinations, product

from _command import ane_book as command
from _long import long_but
from _taggers import SIZES
import ane_book
from ane_book.conversion.plan import Plan, plan
from ane_book.conversion.plan.programs import woken
from ane_book.runtime import Tagger
import numpy as np
import pytest

MODEL = "privacy-filter"
STRATEGIES = ("packed", "dispatch")
L, E, K = 8, 128, 4  # its layers, experts, and experts of a token


def planned(experts: str, **recipe) -> Plan:
    return ane_book.plan(MODEL, experts=experts, **recipe)


class TestWoken:
    """The expected number of distinct experts, against every way in which tokens can choose."""

    @pytest.mark.parametrize(("experts", "k", "tokens"), [(4, 2, 2), (5, 1, 3), (3, 3, 2)])
    def test_of_tokens_that_choose_all_sets_alike(self, experts, k, tokens):
        ways = list(product(combinations(range(experts), k), repeat=tokens))
        exact = sum(len({e for chosen in way for e in chosen}) for way in ways) / len(ways)
        found = woken(np.full((1, experts), k / experts), tokens)
        assert found == pytest.approx([exact])


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
            read = [times * programs[package].bytes for package, times in running.calls.items()]
            assert sum(read) == pytest.approx(made.read_bytes())


class TestCalls:
    def test_a_token_calls_the_trunk_and_its_experts(self):
        made = planned("dispatch")
        assert made.calls() == pytest.approx(L + 1 + L * K)
        assert made.woken() == pytest.approx(L * K)
        trunk = sum(program.bytes for program in made.always)
        one = next(p.bytes for p in made.programs if p.expert is not None)
        assert made.read_bytes() == pytest.approx(trunk + L * K * one)

    def test_in_a_graph_all_experts_run_whatever_is_chosen(self):
        made = planned("packed")
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


class TestLines:
    def test_the_command_shows_all_strategies(self):
        said = command("plan", MODEL, "--experts", "dispatch", "--shard-limit", "250MB").stdout
        assert "9 of layers, 1,024 of experts: " in said
        assert "dispatch: 1,033 programs; 41 calls, 101.2 MB a token" in said
        assert "packed:" not in said  # whole layers are beyond the limit
