"""The README's figures are those of the records in research/."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
RESEARCH = ROOT / "research"


def record(name: str) -> dict:
    return json.loads((RESEARCH / f"{name}.json").read_text())


def conformance() -> list[str]:
    ops = record("conformance")["predicted"]["ops"]
    single, half, mixed = (ops[kind] for kind in ("fp32", "fp16", "fp32, fp16 tensors"))

    def passed(run: dict) -> str:
        return f"{run['passed']:,} of {run['passed'] + run['failed']:,}"

    middle, most, _ = half["expected"]
    return [
        f"in single precision, {passed(single)} give the values that these tests expect, to 0.0001",
        f"and {single['teeth'] - single['failed']:,} of these would notice an executor that is "
        "10 % off",
        f"as Apple ships them, {passed(half)} do",
        f"only {half['teeth'] - half['failed']:,} would notice",
        f"half of them are within {middle:.0e} of the range and 99 % within {most:.0e}",
        f"which have none to give, {passed(mixed)} pass",
    ]


def damaged() -> list[str]:
    run = record("measurements/fuzz")
    assert run["findings"] == []
    return [f"Of {run['cases']:,} damaged packages none crashes or hangs"]


def models() -> list[str]:
    parity, vectors = record("measurements/parity"), record("measurements/embedding")
    assert set(parity["fp32_prompts_equal"].values()) == {parity["prompts"]}
    least = {kind: row["cosine_min"] for kind, row in vectors["results"].items()}
    assert least["fp32"] >= 0.999999 and least["fp16"] >= 0.999998
    return [
        f"{parity['prompts']} of {parity['prompts']} prompts token for token in fp32, "
        f"{parity['fp16_same_next_token']:.1%} equal".replace("%", " %"),
        f"{vectors['sentences']:,} sentences: the vectors' cosine to those of `transformers` is "
        "at least 0.999999 (fp32) and 0.999998 (fp16)",
    ]


def speed() -> list[str]:
    runs, loss = record("measurements/decode")["results"], record("measurements/quantization")
    ours = {name: row for name, row in runs.items() if name.startswith("executor")}
    names = ("executor fp32", "executor fp16", "executor int8", "executor lut4")
    fp32, fp16, int8, lut4 = (f"{ours[name]['decode_ratio']:.1f}" for name in names)
    prefill = [row["prefill_ratio"] for row in ours.values()]
    beside = [
        f"{ours[name][kind] / runs[other][kind]:.2f}"
        for kind in ("decode_tps", "prefill_tps")
        for name, other in (
            ("executor fp16", "llama.cpp F16"),
            ("executor int8", "llama.cpp Q8_0"),
            ("executor int4", "ONNX Runtime GenAI int4"),
        )
    ]
    opened = record("measurements/opening")["results"]["fp16"]
    assert round(1 + loss["results"]["lut4"]["change"]) == 10
    return [
        f"decode {fp32} (fp32), {fp16} (fp16), {int8} (int8) and {lut4} (4-bit palettes",
        f"against +{100 * loss['results']['int8']['change']:.1f} % for int8",
        f"prefill {min(prefill):.1f} to {max(prefill):.1f}",
        "decode {} times the speed of llama.cpp's F16, {} times that of its Q8_0 and, in 4 bits, "
        "{} times that of ONNX Runtime GenAI, prefill {}, {} and {} times".format(*beside),
        f"first prediction made in {opened['open_s'] + opened['first_s']:.1f} s",
        f"its first token {opened['run_s']:.1f} s after its start",
        f"and some {opened['memory_mb'] * (1 - 1 / opened['memory_ratio']):.0f} MB to the process",
    ]


@pytest.mark.parametrize("figures", [conformance, damaged, models, speed])
def test_figures_are_those_of_the_records(figures):
    missing = [text for text in figures() if text not in README]
    assert not missing, f"README.md has other figures than research/: it should say {missing}"
