"""What "Bits" says of its numbers: those by hand, of its record, and of its tables when built."""

import re

from _executed import defined, printed, source
from _site import SITE, needs_site
from ane_book.conversion.quantize.encoded import quantize
from ane_book_pages import records
from bs4 import BeautifulSoup
from mlprogram.ane import claims
import numpy as np
import torch

RECORD = records.read("measurements/quantization_bits.json")
ROUNDED, CALIBRATED = RECORD["rounded"], RECORD["calibrated"]
LOST = {name: row["change"] for name, row in (ROUNDED | CALIBRATED).items()}


def rms(x) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def quantized(w, **options):
    data, scale = quantize(torch.from_numpy(w)[:, :, None, None], len(w), bits=4, **options)
    return data[:, :, 0, 0], scale[:, :, 0, 0]


def test_eight_numbers_by_hand():
    eight = np.array([[0.09, -0.21, 0.14, 0.02, -0.12, 0.28, -0.06, 0.70]], "f4")
    data, scale = quantized(eight)
    off, first = data * 0.1 - eight, eight[:, :4]
    assert data.ravel().tolist() == [1, -2, 1, 0, -1, 3, -1, 7] and abs(scale.item() - 0.1) < 1e-4
    found = rms(off), rms(eight), rms(off) / rms(eight)
    assert [round(each, 3) for each in found] == [0.024, 0.287, 0.084]
    data, scale = quantized(eight, blocks=2)
    assert np.allclose(scale, (0.03, 0.1), atol=1e-4)
    assert round(rms(off[:, :4]), 4) == 0.0235
    assert round(rms(data[:, :4] * 0.03 - first), 4) == 0.0071


def test_the_pages_quantiser_is_the_librarys():
    w = np.random.default_rng(0).standard_normal((16, 128), np.float32)
    data, scale = defined("bits", "quantise")(w, 1, 32, 4)
    ours, theirs = quantized(w, blocks=4)
    assert (ours == data).mean() > 0.99 and np.allclose(theirs, scale, rtol=1e-3)


def test_others_speeds_are_those_of_the_claims():
    slow, channel = (claims.find(name).value for name in ("palette-slow", "int4-per-channel"))
    text = source("bits")
    assert "ran at {:.2f} to {:.2f}, and 4-bit integers".format(*slow) in text
    assert "for each channel at {:.2f} to 1.75, or {:.2f} where fp16".format(*channel) in text


def test_what_the_model_loses():
    assert LOST["int8"] < 0.01 < LOST["int8-tensor"] / 5
    assert min(LOST[name] for name in ("int4", "int4-channel", "lut4")) > 0.4
    assert 4.5 < LOST["lut4"] / LOST["int4-channel"] < 5.5
    below = [n for n, row in CALIBRATED.items() if max(LOST[n], row["code"]["change"]) < 0.1]
    assert min(below, key=lambda name: CALIBRATED[name]["bytes"]) == "auto:4.5"
    tensor = ROUNDED["int8-tensor"]
    assert tensor["change"] > 5 * tensor["change_error"]
    assert 0.085 < tensor["perplexity_error"] / tensor["perplexity"] < 0.095
    layers = records.read("measurements/quantization.json")["by_layer"]["divergence"]
    assert {*np.argsort(layers)[-2:]} == {28, 29}


def test_packages_on_the_executor_lose_what_the_record_says():
    for name, row in records.read("measurements/quantization.json")["results"].items():
        assert abs(LOST[name] / row["change"] - 1) < 0.15 or row["change"] < 0.02, name


def test_times_by_hand():
    forms = ROUNDED["none"], ROUNDED["int8"], CALIBRATED["auto:5"]
    assert [round(row["bytes"] / 122e6, 1) for row in forms] == [2.2, 1.1, 0.7]
    flops = 2 * 106_168_320 * 64
    assert [round(flops / rate / 1e9, 1) for rate in (18.8, 10.2)] == [0.7, 1.3]


@needs_site
def test_tables_of_the_built_page():
    def numbers(row):
        texts = [cell.get_text().replace("−", "-").replace(",", "") for cell in row[1:]]
        return [float(text.strip("%")) for text in texts if re.fullmatch(r"[-+]?[\d.]+%?", text)]

    page = BeautifulSoup((SITE / "bits.html").read_text("utf-8"), "html.parser")
    rows = [row.select("td") for row in page.select(".cell_output tr")]
    rows = [row for row in reversed(rows) if row]  # the first of a name is the one kept
    found = {row[0].get_text(): numbers(row) for row in rows}
    for form in ("int8-tensor", "int8", "int4-channel", "int4"):
        _, error, rule = found[form]
        assert abs(error - rule) < 0.05 * rule + 0.1, form
    assert all(1 < found[form][1] / found[form][2] < 1.5 for form in ("lut6", "lut4"))
    (row,) = (value for name, (value, *_) in found.items() if re.fullmatch(r"row \d+ alone", name))
    (fifteen,), (rest,) = found["15 weights of that row"], found["all but that row"]
    assert abs(fifteen / row - 1) < 0.05 and row > 3 * rest
    wrong = [found[name] for name in found if "neighbouring" in name or "wrong axis" in name]
    assert len(wrong) == 3 and all(34 < off < 45.5 and lost > 200 for off, lost, _ in wrong)
    misread = found["fp16, last norm misread"][1]
    assert misread > 100 * LOST["lut4"] > min(lost for _, lost, _ in wrong)


@needs_site
def test_what_the_built_page_printed():
    told = r"(rounded|GPTQ) +weights off by (\d+)%, outputs by ([\d.]+)%"
    off = {name: (float(w), float(y)) for name, w, y in re.findall(told, printed("bits"))}
    assert off["GPTQ"][0] > 1.2 * off["rounded"][0] and off["GPTQ"][1] < 0.8 * off["rounded"][1]
    told = re.search(r"the quiet expert: ([\d.]+), and ([\d.]+) before", printed("bits"))
    after, before = map(float, told.groups())
    assert after > 0.999 and 0.5 < before < 0.9
