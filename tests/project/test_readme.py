"""The README's figures are those of the records in research/."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
RESEARCH = ROOT / "research"


def record(name: str) -> dict:
    return json.loads((RESEARCH / f"{name}.json").read_text())


def damaged() -> list[str]:
    run = record("measurements/fuzz")
    assert run["findings"] == []
    return [f"{run['cases']:,} damaged packages: none crashes, none hangs"]


def models() -> list[str]:
    parity, vectors = record("measurements/parity"), record("measurements/embedding")
    assert set(parity["fp32_prompts_equal"].values()) == {parity["prompts"]}
    assert all(row["cosine_min"] >= 0.999998 for row in vectors["results"].values())
    return [
        f"{parity['prompts']} of {parity['prompts']} prompts token for token in fp32, "
        f"{parity['fp16_same_next_token']:.1%} equal".replace("%", " %"),
        f"cosines of at least 0.999998 over {vectors['sentences']:,} sentences",
    ]


def speed() -> list[str]:
    def ratios(cpu: str) -> tuple[str, str]:
        runs = record("measurements/decode")[cpu]["results"]
        ours, llama = runs["executor fp16"], runs["llama.cpp F16"]
        return f"{ours['decode_ratio']:.1f}", f"{ours['decode_tps'] / llama['decode_tps']:.2f}"

    opened = record("measurements/opening")
    assert "EPYC" in opened["machine"]["processor"]
    return [
        "decode is {} times as fast as `transformers` in eager fp32 and {} times as fast as "
        "llama.cpp's F16".format(*ratios("Intel(R) Xeon(R) Processor, 2 cores")),
        "with AVX-512, {} and {} times".format(*ratios("AMD EPYC, 2 cores, family 25, model 17")),
        f"its first token after {opened['results']['fp16']['run_s']:.1f} s",
    ]


@pytest.mark.parametrize("figures", [damaged, models, speed])
def test_figures_are_those_of_the_records(figures):
    missing = [text for text in figures() if text not in README]
    assert not missing, f"README.md has other figures than research/: it should say {missing}"
