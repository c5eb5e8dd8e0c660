"""Sentences of pages on layers, packages, the engine, guesses, experts and ONNX: what they say of a
number is true of it."""

from functools import cache
import re

from _executed import defined, source
from _site import SITE, needs_site
import ane_book
from ane_book.conversion.plan import programs
from ane_book.conversion.quantize.encoded import encode
from ane_book.conversion.quantize.schemes import SCHEMES
from ane_book_pages import records, sources
from ane_book_pages.figures.layer import STEPS
from bs4 import BeautifulSoup
from mlprogram import MLProgram
from mlprogram.ane import claims, cost
from mlprogram.ane.cost import chips
import numpy as np
import pytest
import to_notebooks
import torch

KNOWN = {**sources.everything(), **chips()}
PHI = "phi-4-mini-instruct"


@cache
def table(page: str, first: str) -> dict[str, list[str]]:
    """The rows of a built page's table whose first cell begins with this."""
    built = BeautifulSoup((SITE / f"{page}.html").read_text("utf-8"), "html.parser")
    for found in built.select("table"):
        rows = [[" ".join(cell.get_text().split()) for cell in row(["th", "td"])]
                for row in found("tr")]  # fmt: skip
        if any(row[0].startswith(first) for row in rows):
            return {row[0]: row[1:] for row in rows}
    raise LookupError(first)


def shown(page: str, name: str) -> float:
    """A number that the page showed when it was built."""
    return float(to_notebooks.values()[page][name].replace(",", ""))


class TestPackages:
    PAGE = "from-a-layer-to-packages"

    def test_only_near_ties_are_lost_in_half_precision(self):
        assert shown(self.PAGE, "lost:.3f") < 0.04 and shown(self.PAGE, "agree:.1f") >= 98.5

    def test_a_forgotten_order_is_seen_in_perplexity(self):
        right, forgotten = (shown(self.PAGE, f"perplexity_{w}:.0f") for w in ("right", "forgotten"))
        assert forgotten > 1.6 * right

    def test_phi_by_hand_is_the_plan(self):
        phi = ane_book.plan(PHI, quant="int8", shard_limit="1GB")
        assert [p.layers for p in phi.programs] == [
            range(0, 8), range(8, 16), range(16, 24), range(24, 32), range(0, 0)]  # fmt: skip
        for program, by_hand in zip(phi.programs, [805_748_736] * 4 + [614_996_736], strict=True):
            assert 0 <= program.bytes / by_hand - 1 < 2e-4
            assert f"{by_hand:,}" in source(self.PAGE)

    def test_smaller_shards_are_sixteen(self):
        small = ane_book.plan(PHI, quant="int8", shard_limit="250MB")
        low, high = claims.find("layer-programs").value
        assert (len(small.shards), round(low, 1), round(high, 1)) == (16, 1.6, 2.7)
        assert f"the 12 more cost {12 * low:.0f} to {12 * high:.0f} ms" in source(self.PAGE)

    def test_others_write_more_ops(self):
        peers = records.read("measurements/peers.json")["converters"].values()
        assert min(peer["ops_per_layer"] for peer in peers) > 41

    @needs_site
    def test_apples_form_has_more_ops_and_fewer_transposes(self):
        rows = table("a-layer", "counted: operations")
        number = {
            name: [float(cell.replace(",", "").removesuffix("ms")) for cell in cells]
            for name, cells in rows.items()
            if name and "unmeasured" not in cells
        }
        ops, apples = number["counted: operations of decode"]
        assert 1.7 < apples / ops < 1.9
        assert number["transposes"][0] == 2 * number["transposes"][1]
        estimates = [number[name] for name in number if name.startswith(("predicted", "the same"))]
        assert len(estimates) == 2 and all(ours < apples for ours, apples in estimates)


class TestLayer:
    @pytest.mark.parametrize("function", ["decode", "prefill"])
    def test_shapes_of_the_figure_are_those_of_a_package(self, function, tiny_bundle):
        bundle = tiny_bundle("llama", kv="state")[1]
        c = bundle.config
        program = MLProgram(bundle.path / bundle.manifest.shards[0].package, function)
        letters = {
            "C": c.hidden_size, "F": c.intermediate_size, "H": c.num_heads, "D": c.head_dim,
            "K": c.num_kv_heads, "G": c.num_heads // c.num_kv_heads, "S": 32,
            "T": program.inputs["hidden"].shape[3],
        }  # fmt: skip
        made = {type_.shape for op in program.operations for name, type_ in op.outputs
                if name.startswith("layer0_")}  # fmt: skip
        for step, _, shape in STEPS:
            assert eval(re.sub(r"2(?=[FK])", "2*", shape).replace("·", "*"), letters) in made, step


class TestEngine:
    def test_sums_are_right(self):
        cores, clock = KNOWN["cores"].value, KNOWN["clock-m4"].value
        assert abs(2 * cores * 512 * clock / 1e3 / KNOWN["peak-m4"].value - 1) < 0.03
        assert f"{cores * KNOWN['memory-weights'].value / 268_959_744:.2%}" == "0.39%"
        assert round(sum(us for _, us, _ in defined("inside-the-engine", "STAGES"))) == 227
        assert abs(0.77 / 0.23 * 0.975 / 3.171 - 1) < 0.04  # the claim `governor`
        short, long = (128 * 2 * 512 * 512 * n / ms / 1e9 for n, ms in ((64, 0.366), (4096, 14.8)))
        assert abs(short / KNOWN["arithmetic-m4-short"].value - 1) < 0.005
        assert abs(long / KNOWN["arithmetic-m4"].value - 1) < 0.005


class TestGuesses:
    ROWS = records.read("measurements/speculation_published.json")["rows"]

    def test_dense_calls_are_nearly_free_and_a_second_model_loses(self):
        dense = [row for row in self.ROWS if row["call"] and "mixture" not in row["model"]]
        ends = min(row["call"][0] for row in dense), max(row["call"][1] for row in dense)
        assert ends == claims.find("verify-free").bounds
        assert {row["tokens"] for row in dense} == {4, 5, 8}
        gains = [(row["drafter"], *row["gain"]) for row in self.ROWS if row["gain"]]
        lookups = [low for drafter, low, _ in gains if drafter.startswith("lookup")]
        assert round(100 * min(lookups)) == 101
        assert next(high for drafter, _, high in gains if drafter.startswith("Qwen")) < 1

    def test_tiles_cost_most_where_guesses_begin_to_pay(self):
        tiles = {a / 100: 8 / (1 + 7 * (1 - a / 100)) for a in range(100)}
        lost = {a: 1 - each / ((1 - a**8) / (1 - a)) for a, each in tiles.items()}
        assert 0.75 < max(lost, key=lost.get) < 0.85 and max(lost.values()) < 0.205
        assert 2 < tiles[0.6] < 2.2 and tiles[0.5] < 2

    def test_a_text_flatters(self):
        first, last = claims.find("drafters-live").bounds
        assert (round(first), round(last)) == (3, 9)


class TestExperts:
    def test_a_call_may_cost_less_or_more_than_what_it_saves(self):
        plans = ane_book.plan("privacy-filter", experts="packed").strategies
        packed, apart = plans["packed"], plans["dispatch"]
        rate = 1e9 * sum(cost.find_chip("m4-max").bounds) / 2
        saved = 1e3 * (packed.read_bytes() - apart.read_bytes()) / rate
        low, high = cost.parameter("program").bounds
        assert low < saved / (apart.calls() - packed.calls()) < high
        assert (packed.calls(), apart.calls()) == (3, 8 * 4 + 9)

    def test_four_tokens_of_zaya_are_slow_and_arithmetic_is_not_the_reason(self):
        four = claims.find("experts-verify").bounds[1]
        one = 1e3 / claims.find("experts-soft").bounds[0]
        added = 3 * 2 * 40 * 0.2023 / claims.find("arithmetic-m4-max").number
        assert four / one > 4 and added < 0.05 * (four - one)

    def test_neighbours_choose_alike(self):
        assert 10 < shown("experts", "fewer:.0f") < 25 and shown("experts", "fewer_8:.0f") > 2
        assert 1 < shown("experts", "turn_low") < shown("experts", "turn_high") < 64

    @needs_site
    def test_one_position_stays_on_the_cpu(self):
        rows = table("experts", "positions a call")
        verdicts = dict(zip(rows["positions a call"], rows["place, M4"], strict=True))
        assert [verdicts[n] for n in ("1", "32", "128")] == ["CPU", "CPU", "ANE"]


def test_experts_counts_as_a_plan_does():
    shares = np.random.default_rng(0).random((4, 8))
    woken = defined("experts", "woken")
    assert woken(shares, 3) == pytest.approx(programs.woken(shares, 3).sum())


class TestGraphs:
    def test_integers_are_kept_exactly_and_rounded_again_are_not(self):
        names = "widened:.1e", "kept:.1e", "again:.2f"
        widened, kept, again = (shown("gguf-and-onnx", name) for name in names)
        assert max(widened, kept) < 2**-11 and again > 100 * kept
        assert 4.5 < shown("gguf-and-onnx", "bits_a_weight:.2f") < 4.6

    def test_the_pages_second_rounding_is_int4(self):
        again = defined("gguf-and-onnx", "again")
        again.__globals__["BLOCK"] = 32
        w = np.random.default_rng(0).standard_normal((16, 128), np.float32)
        theirs = encode(torch.from_numpy(w)[:, :, None, None], SCHEMES["int4"]).weight()
        made, bits = again(w)
        close = np.isclose(made, theirs.flatten(1).numpy(), rtol=1e-2)
        assert close.mean() > 0.99 and bits == 4.5  # a number between two may go to either
        assert len(np.unique(np.round(made[0, :32] / np.abs(made[0, :32]).max() * 7))) <= 15

    def test_recorded_answers_are_equal(self):
        cases = records.read("measurements/onnx_bundles.json")["cases"].values()
        assert len(cases) == 6 and all(case["equal"] == case["prompts"] for case in cases)

    def test_hardly_a_test_of_onnx_fails(self):
        tests = records.read("onnx-nodes.json")
        total = sum(tests["claimed"].values())
        assert tests["claimed"].get("failed", 0) < 0.01 * total
        assert all(name.startswith("test_dft_inverse") for name in tests["failed"])

    def test_an_audio_model_is_as_exact_as_its_makers(self):
        pitch = records.read("measurements/basic_pitch.json")["precision"]["fp32"]
        assert pitch["ours to onnxruntime"] < 1.01 * pitch["theirs to onnxruntime"] < 1e-4
