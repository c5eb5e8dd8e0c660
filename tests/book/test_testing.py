"""What "Test any ML Program" says of its outputs and records."""

import re

from _executed import printed
from _site import SITE, needs_site
from ane_book_pages import records
from bs4 import BeautifulSoup

PAGE = "testing"


@needs_site
class TestBuilt:
    def test_what_cells_printed(self):
        for said in ("74,816 bytes", "equal: True", "row 2 left as it came in: True",
                     "first apart: mul ", "align_corners", "beyond fp16",
                     "ByHand 1.0 nan", "6 passed", "2 failed, 4 passed"):  # fmt: skip
            assert said in printed(PAGE), said
        assert printed(PAGE).count("[loud]") == 2
        assert 64 + (64 + 128) + 3 * (64 + 24_576) == 74_176 == 74_816 - (64 + 384) - (64 + 128)

    def test_the_rows_of_the_lost_token(self):
        lost, kept = (
            [float(each) for each in re.findall(r"([\d.]+)%", line)]
            for line in re.findall(r"^(?:textbook|cured) .*", printed(PAGE), re.M)
        )
        assert lost[2] > 90 and 0.05 < min(kept) < max(kept) < 0.5

    def test_values_of_the_loud_row(self):
        page = BeautifulSoup((SITE / f"{PAGE}.html").read_text("utf-8"), "html.parser")
        rows = [[cell.get_text() for cell in row.select("td")] for row in page.select("tr")]
        found = {row[0]: row[1:] for row in reversed(rows) if row}  # the first of a name
        assert found["mul"] == ["∞", "90,000"] and found["reduce_mean"] == ["∞", "1,407"]
        assert found["rsqrt"] == ["0", "0.0267"] and found["linear"][0] == "0"
        said = page.article.get_text()
        assert int(re.search(r"a norm reads is (\d+),", said)[1]) >= 20
        flipped, op = (float(re.search(rf"{text} ([\d.]+)\s%", said)[1])
                       for text in ("is off by only", "flipped bit put its op"))  # fmt: skip
        assert flipped < 1 < 100 < op


def test_engines_that_do_not_round_agree_and_none_reads_more_than_there_is():
    decode = records.read("measurements/decode.json")["Intel(R) Xeon(R) Processor, 2 cores"]
    engines = decode["models"]["smollm2-135m"]["engines"]
    exact = "transformers eager fp32", "executor fp32", "llama.cpp F16", "ONNX Runtime GenAI fp32"
    assert all(engines[name]["same_tokens"] == 24 for name in exact)
    assert all(max(r["read_share"], r["flop_share"]) < 1 for r in decode["results"].values())


def test_rounding_like_the_engine_changes_tokens_and_single_precision_none():
    assert records.read("measurements/numerics.json")["changed"] == {"single": 0, "engine": 4}
