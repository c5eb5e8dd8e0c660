"""Is it worth it?, "Who reads, and who writes?": the page's sums and what it concludes from them.

The speeds are the sources' own, as claims.toml has them; bytes are those of the models' sizes.
"""

import re
from typing import NamedTuple

from _site import ROOT, SITE, needs_site
import ane_book
from bs4 import BeautifulSoup
from mlprogram.ane import claims
import pytest

PAGE = (ROOT / "book" / "is-it-worth-it.md").read_text("utf-8")
SECTION = PAGE.partition("(who-reads)=")[2].partition("\n## The background")[0]
ROWS = {
    cells[0]: cells[1:]
    for line in SECTION.splitlines()
    if line.startswith("| ") and (cells := line.strip("| ").split(" | "))
}
GB_S = 1.0  # each way; the page supposes it

QWEN3_4B = 36 * 2 * 8 * 128 * 2  # bytes of a token: 36 layers
HYBRID = 8 * 2 * 4 * 256 * 2  # of Qwen3.5-4B: its layers of attention
MEMORIES = 24 * 32 * 128**2 * 4  # bytes, whatever the length: those of its other layers


class Machine(NamedTuple):
    """A request, and what is published: (engine, GPU) in tokens/s."""

    prompt: int
    answer: int
    reads: tuple[float, float]
    writes: tuple[float, float]
    token: int  # bytes handed over for each token
    fixed: int = 0  # and for none

    @property
    def handed(self) -> int:
        return self.fixed + self.prompt * self.token

    def seconds(self) -> dict[str, float]:
        """Part by part, then by who does what."""
        read = [self.prompt / each for each in self.reads]
        write = [self.answer / each for each in self.writes]
        handed = 2 * self.handed / (1e9 * GB_S)
        return {
            "engine reads": read[0],
            "GPU reads": read[1],
            "saved and opened": handed,
            "engine writes": write[0],
            "GPU writes": write[1],
            "engine alone": read[0] + write[0],
            "GPU alone": read[1] + write[1],
            "engine, then GPU": read[0] + handed + write[1],
        }

    def saved(self) -> float:
        """Seconds that a token of the prompt saves on the engine."""
        return 1 / self.reads[1] - 1 / self.reads[0]

    def gained(self) -> tuple[float, float]:
        """Seconds that the hand-over gains, and of how many."""
        found = self.seconds()
        return found["GPU alone"] - found["engine, then GPU"], found["GPU alone"]

    def breaks_even(self, gb_s: float = GB_S) -> float:
        """Tokens of a prompt from which on the hand-over pays against the GPU alone."""
        f, h = (2 * each / (1e9 * gb_s) for each in (self.fixed, self.token))
        return f / (self.saved() - h)


M5_PRO = Machine(1000, 100, (884.3, 3234.7), (14.70, 30.08), QWEN3_4B)
M4 = Machine(512, 100, (556.1, 385.0), (18.63, 28.0), HYBRID, MEMORIES)
PHONE = Machine(2681, 100, (2681 / 3.998, 2681 / 5.212), (11.6, 14.6), QWEN3_4B)


def says(claim: str, *words: str) -> bool:
    """Whether one source of a claim has all of these words."""
    found = claims.find(claim)
    return any(all(word in e.says for word in words) for e in (*found.support, *found.against))


@pytest.mark.parametrize(
    ("label", "model"),
    [
        ("SmolLM2 135M", "smollm2-135m-instruct"),
        ("Qwen2.5 0.5B", "qwen2.5-0.5b-instruct"),
        ("Phi-4-mini 3.8B", "phi-4-mini-instruct"),
    ],
)
def test_bytes_of_a_token_are_those_of_the_models_cache(label, model):
    planned = ane_book.plan(model, context=1024)
    of = planned.config
    bytes_ = of.num_layers * 2 * of.num_kv_heads * of.head_dim * 2
    assert planned.cache_bytes == 1024 * bytes_
    product = f"{of.num_layers} · 2 · {of.num_kv_heads} · {of.head_dim} · 2 = {bytes_:,}"
    ms = 2 * 1000 * bytes_ / (1e9 * GB_S) * 1e3
    assert ROWS[label] == [product, f"{bytes_ / 1e3:.1f} MB", f"{ms:.0f} ms"]


def test_bytes_of_a_token_of_the_model_in_the_second_table():
    product = f"36 · 2 · 8 · 128 · 2 = {QWEN3_4B:,}"
    seconds = 2 * 1000 * QWEN3_4B / (1e9 * GB_S)
    assert ROWS["Qwen3-4B"] == [product, f"{QWEN3_4B / 1e3:.1f} MB", f"{1e3 * seconds:.0f} ms"]
    assert f"2 · {QWEN3_4B:,} bytes" in SECTION


@pytest.mark.parametrize(("column", "machine"), [*enumerate((M5_PRO, M4, PHONE))])
def test_a_machines_column_adds_up(column, machine):
    found = machine.seconds()
    for name, seconds in found.items():
        shown = ROWS[f"{name}, s"][column].strip("*").rpartition("= ")[2]
        assert shown == f"{seconds:.{len(shown.partition('.')[2])}f}", name
    assert ROWS["handed over, MB"][column].endswith(f"= {machine.handed / 1e6:.1f}")
    ways = ("engine alone", "GPU alone", "engine, then GPU")
    bold = [name for name in ways if "**" in ROWS[f"{name}, s"][column]]
    assert bold == [min(ways, key=found.get)]


def test_speeds_are_the_sources():
    assert 'M5 Pro, prefill": ((884.281, 3234.748)' in PAGE
    assert 'M5 Pro, decode": ((14.697, 30.075)' in PAGE
    assert says("prefill-gpu", "556.1 tokens/s of 512 on an M4's engine", "Core ML")
    assert says("prefill-gpu", "385 tokens/s of 512 by llama.cpp in Q4_K_M")
    assert says("prefill-gpu", "iPhone 17 Pro", "4.0 s (671 tokens/s)", "5.2 s (514)")
    assert says("decode-gpu", "iPhone 17 Pro", "26.3 and 18.0 after 666", "11.6 and 14.6")
    assert says("decode-gpu", "iPhone 17 Pro", "3.2 and 4.0 GB")
    assert f"some {3.2 + 4.0:.0f} GB: each alone took 3.2 and 4.0 GB" in SECTION
    assert says("decode-gpu", "M4 Max", "180.7", "531.1")
    assert says("energy-gpu", "M4 Max", "0.48 J", "0.24 J by MLX")
    assert says("decode-phone", "Qwen3.5-2B 27.9 and 61.2", "both on iOS 26.4.2")
    assert says("palette-taken", "M5 Pro", "no request to the engine, all of it on the GPU")
    assert claims.find("prefill-handed-over").value == 12 + 9 + 6
    assert 74 / 268 + 0.027 > 74 / 736  # so it lost


PAYS = ROWS["the hand-over pays, at 1 GB/s, against the GPU alone"]
WHO = ROWS["reads; writes"]


def test_the_verdict_is_the_largest_gain():
    shares = [gain / alone for gain, alone in map(Machine.gained, (M5_PRO, M4, PHONE))]
    assert f"more than {max(shares):.0%}".replace("%", " %") in SECTION and max(shares) <= 0.06


def test_a_copy_in_memory_pays_sooner():
    assert M5_PRO.saved() < 0  # never, however fast
    assert f"({M4.breaks_even(50):.0f}, if the copy is 50 times as fast)" in SECTION
    assert PHONE.fixed == 0 and 2 * PHONE.token / 50e9 < PHONE.saved()


def test_where_the_engine_reads_more_slowly_no_length_helps():
    assert M5_PRO.saved() < 0 and PAYS[0] == "never" and WHO[0] == "GPU; GPU"
    assert M5_PRO.reads[0] < M5_PRO.reads[1] / 3


def test_the_m4_breaks_even_at_a_length():
    f, h = (2 * each / (1e9 * GB_S) for each in (M4.fixed, M4.token))
    assert f"{M4.fixed / 1e6:.1f} MB in all, so f = {f:.2f} s" in SECTION
    assert f"= {HYBRID:,} bytes of a token, so h = {1e3 * h:.3f} ms" in SECTION
    assert PAYS[1] == f"from {M4.breaks_even():.0f} tokens on"
    assert "{:.1f} s of {:.1f} on the M4".format(*M4.gained()) in SECTION
    assert WHO[1] == "engine; GPU"


def test_the_phone_breaks_even_at_a_rate_and_at_an_answer():
    rate = 2 * PHONE.token / PHONE.saved() / 1e9
    assert PAYS[2] == f"at every length (break-even: {rate:.2f} GB/s)" and rate < GB_S
    assert f"less than the {1e3 * PHONE.saved():.2f} ms that the engine saves" in SECTION
    slow, fast = PHONE.writes
    answer = PHONE.seconds()["saved and opened"] / (1 / slow - 1 / fast)
    assert f"from {answer:.0f} tokens of answer on" in SECTION
    assert "{:.2f} s of {:.2f} on the phone".format(*PHONE.gained()) in SECTION
    assert WHO[2] == "engine; GPU (a short text: engine; engine)"
    assert 0.97 + 100 / 26.3 < 1.09 + 100 / 18.0  # after 666 tokens


@needs_site
def test_mlx_goes_on_from_the_file():
    built = BeautifulSoup((SITE / "is-it-worth-it.html").read_text("utf-8"), "html.parser")
    shown = " ".join(cell.get_text() for cell in built.select(".cell_output"))
    assert re.search(r"equal tokens: True|prompt\.safetensors has \d+ tokens", shown)
