"""Sentences on shipping, serving and the first ten minutes: what they say of plans and records."""

import re

from _executed import printed, prose
from _site import needs_site
import ane_book
from ane_book.evidence.parity import EXACT, LEAST
from ane_book.evidence.quality import MOST
from ane_book_pages import records
from mlprogram.ane import claims
from mlprogram.ane.cost.devices import find_device
from mlprogram.ane.mac import verdict

QWEN = "qwen2.5-0.5b-instruct"


class TestShipping:
    PAGE = prose("shipping")

    def test_qwen_by_hand_is_the_plan(self):
        width, layers, inner, heads, pairs, each, words = 896, 24, 4864, 14, 2, 64, 151_936
        layer = width * (heads + 2 * pairs) * each + heads * each * width + 3 * width * inner
        assert all(f"{n:,}" in self.PAGE for n in (layer, layers * layer, words * width))
        plan = ane_book.plan(QWEN, quant="int8")
        parts = [sum(p.bytes for p in programs) for programs in (plan.shards, plan.head)]
        ships, wired = plan.weight_bytes + plan.embedding_bytes, plan.wired
        sums = (*parts, plan.weight_bytes, plan.embedding_bytes, ships, wired.least, wired.most)
        assert [n for n in sums if f"{n / 1e6:.1f}" not in self.PAGE] == []
        one = ane_book.plan(QWEN, quant="int8", functions="one").wired
        assert one.least == one.most == wired.least

    def test_models_fit_phones_as_the_figure_is_described(self):
        phi = "phi-4-mini-instruct"
        models = [("smollm2-135m-instruct", "none"), ("gemma-3-270m-it", "int8"), (QWEN, "int8"),
                  ("hy-mt", "int8"), (phi, "lut4"), (phi, "int8")]  # fmt: skip
        *small, hymt, four, eight = [ane_book.plan(n, quant=bits).wired for n, bits in models]
        plain, entitled = find_device("iphone-15-pro").app
        assert (plain, entitled) == (3e9, 6e9)
        assert all(one.most < find_device("iphone-12-mini").app[0] for one in small)
        assert all(one.least < plain < one.most < entitled for one in (hymt, four))
        assert plain < eight.least < entitled < eight.most

    def test_a_tier_is_one_function_too_many(self):
        wired = [ane_book.plan(QWEN, quant="int8", **how).wired.copied
                 for how in ({}, {"verify": 8}, {"tiers": (128,)})]  # fmt: skip
        assert [each < 1.5e9 for each in wired] == [True, True, False]

    def test_first_loads_are_those_of_claims(self):
        names = ("first-load", "first-load-language", "first-load-again")
        said = " ".join(one.says for name in names for one in claims.find(name).support)
        told = ("23 s", "1.28 s", "148.82 s", "521 s", "1.25 s", "15 to 30 s on first launch",
                "about 15 min")  # fmt: skip
        assert [words for words in told if words not in said] == []
        low, high = claims.find("first-load-language").value
        assert high == 60 * low

    def test_it_ships_with_what_the_commands_ask(self):
        limits = {"L1 parity": f"{100 * EXACT:g} % off", "L3 quality": f"{100 * MOST:g} % above"}
        assert all(f"`{name} passed`: at most {limit}" in self.PAGE.replace("perplexity ", "")
                   for name, limit in limits.items())  # fmt: skip
        assert f"a cosine of at least {LEAST}" in self.PAGE

    def test_every_verdict_has_a_row(self):
        words = re.findall(r"^ {4}(\w+) ", verdict.__doc__, re.M)
        assert len(words) == 11 and all(f"| {word} |" in self.PAGE for word in words)


def test_a_second_machine_helps_several_answers_and_not_one():
    for nodes in [*records.read("measurements/cluster.json").values()][-2:]:
        assert nodes["one_answer"] < 1 < nodes["answers_at_once"]


@needs_site
def test_the_commands_of_ten_minutes_say_what_the_page_reads_from_them():
    told = ("Paris", "no overflow, NaN or lost bits", "main: ANE (chip m4)", "8 on the CPU",
            "warning gather-computed", "1 warning, 4 notes", "equal within the tolerance",
            "1 passed")  # fmt: skip
    assert [words for words in told if words not in printed("ten-minutes")] == []
