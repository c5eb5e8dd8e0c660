"""Sentences of pages that interpret a record: what they say is what the record has."""

from collections import Counter
from fnmatch import fnmatch
import re

from _executed import source
from _segmenter import GRAPHS
from ane_book_pages import records, sources
from ane_book_pages.reports import experiments
from ane_book_pages.segmenter import projection
from mlprogram.ane import claims, cost
from mlprogram.ane.placement.estimator import work
from mlprogram.ane.placement.path import LAUNCH, OUTPUT, SWITCH
from mlprogram.ane.placement.path import cost as total
import numpy as np
import pytest

NAMED = {graph.name: graph for graph in GRAPHS}
KNOWN = {**sources.everything(), **cost.chips()}


class TestCoreAI:
    RECORD = records.read("measurements/core_ai.json")

    def test_all_tokens_are_equal_in_both_precisions(self):
        rows = [row for part in ("tokens", "tokens_fp16") for row in self.RECORD[part]]
        assert all(row["equal"] == row["tokens"] == 24 for row in rows)
        decoders = [r for r in self.RECORD["families"].values() if r["kind"] == "decoder"]
        assert all(row["equal"] == row["tokens"] > 2 for row in decoders)

    def test_no_op_and_no_package_gives_other_numbers(self):
        carried = [row for row in self.RECORD["wild"] if "refused" not in row]
        assert max(row["difference"] for row in carried) < 1e-5
        assert not self.RECORD["op_tests"]["failed"]

    def test_old_assets_end_the_process_from_the_second_beta_on(self):
        of_old = self.RECORD["assets"]["of_coreai_torch_0.4.0"]
        assert [*of_old.items()] == [("1.0.0b1", 0), ("1.0.0b2", -6), ("1.0.0b3", -6)]


class TestWillItRun:
    """What the page adds up by hand, and what it says of rates and of simple rules."""

    def test_one_op_moves_eight_others(self):
        kept, split = (NAMED[f"ctx/{name}"] for name in ("abs", "cumsum_w"))
        ane, half, cpu = ["ane"] * 9, ["ane"] * 4, ["bnns"] * 9
        ways = (cpu, [*half, *cpu[4:]], [*cpu[4:], *half], [*half, "bnns", *half])
        assert [1e3 * total(split.estimates, way) for way in ways] == pytest.approx(
            [415.1, 474.3, 599.3, 658.5], abs=0.1)  # fmt: skip
        assert 1e3 * total(kept.estimates, ane) == pytest.approx(282.8, abs=0.1)
        assert all(kept.on_ane) and not any(split.on_ane)
        assert LAUNCH == SWITCH == OUTPUT == 0.125

    def test_single_ops_have_the_estimates_of_the_table(self):
        names = ("conv3x3", "relu", "abs", "cumsum_w")
        ops = [NAMED[f"iso/{name}"].estimates[0] for name in names]
        assert [round(1e3 * op["bnns"], 1) for op in ops] == [100.1, 2.6, 4.3, 4.3]
        assert [round(1e3 * op.get("ane", 0), 1) for op in ops] == [4.7, 2.6, 3.6, 0]

    @pytest.mark.parametrize("backend", ["ane", "bnns"])
    def test_convolutions_have_three_rates(self, backend):
        ops = [each for graph in GRAPHS for each in zip(graph.ops, graph.estimates, strict=True)
               if each[0].type == "conv" and max(each[1].values()) > 1e-5]  # fmt: skip
        rates = {round(np.log(work(op).flops / ms[backend]), 1) for op, ms in ops if backend in ms}
        assert len(rates) == 3

    def test_a_large_matrix_at_one_position(self):
        saved = projection(4096)
        assert saved["by_bytes"] < LAUNCH + OUTPUT < saved["by_step"]

    def test_simple_rules_are_right_and_wrong_more_often(self):
        reports = records.read("measurements/placement_reports.json")["reports"]
        for said in ([r["roofline"] for r in reports], ["ANE"] * len(reports)):
            right = sum(word == r["reported"] for word, r in zip(said, reports, strict=True))
            assert right > sum(r["outcome"] == "hit" for r in reports)
            assert right + said.count("depends") < len(reports)


class TestIsItWorthIt:
    #: anemll-forge at 12f4e68, 8K to 64K: tokens/s of builds C2T and C2, of Splash; J per token.
    M6 = (
        ((60.8, 61.2), 54.2, (0.458, 0.474), 0.857), ((60.3, 51.7), 55.7, (0.465, 0.567), 0.831),
        ((54.5, 55.7), 52.0, (0.519, 0.516), 0.901), ((46.1, 48.8), 48.4, (0.590, 0.580), 0.960),
        ((47.9, 47.8), 48.7, (0.569, 0.587), 0.960),
    )  # fmt: skip

    def test_the_openings_ranges_are_the_sources(self):
        assert claims.find("decode-gpu").value == (2.0, 3.9)
        assert claims.find("prefill-gpu").value == (2.9, 15.9)
        speed = [round(ane / gpu, 2) for each, gpu, *_ in self.M6 for ane in each]
        saved = [round(100 * (1 - ane / gpu)) for *_, each, gpu in self.M6 for ane in each]
        assert (min(speed), max(speed), min(saved), max(saved)) == (0.93, 1.13, 32, 47)


class TestClaims:
    def test_every_claim_of_the_registry_is_under_a_heading(self):
        patterns = {word for call in re.findall(r"^shown\((.*?)\)$", source("claims"), re.M | re.S)
                    for word in re.findall(r'"([\w*-]+)"', call)} - {"*"}  # fmt: skip
        assert not [name for name in claims.load()
                    if not any(fnmatch(name, pattern) for pattern in patterns)]  # fmt: skip

    def test_most_rest_on_one_source_and_many_on_two(self):
        behind = [{sources.of(one) for one in claim.support} for claim in KNOWN.values()]
        often = {of for of, _ in Counter(of for side in behind for of in side).most_common(2)}
        assert sum(len(side) == 1 for side in behind) > len(behind) / 2
        assert 1 / 4 < sum(bool(often & side) for side in behind) / len(behind) < 1 / 2

    def test_most_conflicts_may_be_two_conditions(self):
        parted = Counter(sources.parted(claim) for claim in KNOWN.values()
                         if claim.grade == "conflicting")  # fmt: skip
        silent, apart, same, real = (parted[kind] for kind in sources.PARTED)
        assert silent + apart > same + real and real < same


class TestServing:
    def test_small_models_call_the_right_tool_with_wrong_arguments(self):
        tasks = records.read("measurements/agent_tasks.json")
        assert tasks["valid"] == tasks["calls"] >= tasks["tasks"] == 10
        assert tasks["right_tool_first"] == tasks["tasks"]
        made = " ".join(call for each in tasks["each"] for _, call in each["calls"])
        for wrong in ('"b": 23, "operation": "add"', '"path": "w"', "mail_to_today"):
            assert wrong in made

    def test_of_drawn_answers_two_are_cut_and_two_invalid(self):
        answers = records.read("measurements/schema_forms.json")["answers"]
        assert answers["cut"] == answers["invalid"] == 2


class TestDecisions:
    """Each rests on figures, and would have to be told otherwise if they turned."""

    def test_the_executor_gives_what_apples_tests_expect(self):
        ops = records.read("conformance.json")["predicted"]["ops"]["fp32"]
        assert ops["passed"] > 500 * ops["failed"]

    def test_stamping_is_several_times_as_fast(self):
        runs = records.read("measurements/convert.json")["runs"]
        peers = records.read("measurements/peers.json")["converters"]
        slowest = max(run["seconds"] for run in runs)
        for peer in ("ANEMLL", "coremltools, Apple's recipe"):
            assert peers[peer]["seconds"] > 5 * slowest

    def test_a_scale_for_each_channel_costs_a_tenth(self):
        quant = records.read("measurements/quantization.json")["results"]
        assert quant["int8"]["change"] < 0.01
        assert quant["int8-tensor"]["change"] > 10 * quant["int8"]["change"]

    def test_half_precision_parts_at_near_ties_only(self):
        parity = records.read("measurements/parity.json")
        assert parity["fp32_prompts_equal"]["state"] == parity["prompts"]
        assert max(parity["fp16_margins_where_different"]) < 0.02

    def test_experts_apart_pay_for_one_token_and_not_for_many(self):
        models = records.read("measurements/experts.json")["models"]
        times = models["privacy-filter"]["strategies"]["dispatch"]["time_over_packed"]
        assert times["1"] < 1 < times["64"]

    def test_columns_differ_and_tiles_do_not(self):
        guesses = records.read("measurements/speculation.json")["fp16"]
        drift = guesses["drift"]["verify"]
        assert guesses["equal"] == guesses["prompts"]
        assert drift["other_logits"] > 0.9 * drift["tokens"]

    def test_tiers_add_no_byte_of_weights(self):
        tiers = records.read("measurements/tiers.json")
        assert tiers["one_cache"]["weight_bytes"] == tiers["tiers"]["weight_bytes"]
        assert tiers["by_tier"]["128"]["ratio_range"][1] < 0.9

    @pytest.mark.parametrize(
        "name",
        ["program-250mb", "program-small", "non-finite", "state-writes", "topk", "flexible-cpu"],
    )
    def test_what_a_decision_rests_on_is_contested_and_a_script_asks(self, name):
        scripts = records.find("experiments/index.toml").parent.glob("settle_*.py")
        assert claims.find(name).grade == "conflicting"
        assert name in {claim for path in scripts for claim in experiments.asked(path)[0]}
