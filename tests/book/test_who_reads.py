"""Is it worth it?, "Who reads, and who writes?": the page's sums and what it concludes from them.

The speeds are the sources' own, as claims.toml has them; bytes are those of the models' sizes.
"""

import re
from typing import NamedTuple

from _site import ROOT, SITE, needs_site
import ane_book
from bs4 import BeautifulSoup
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


M5_PRO = Machine(1000, 100, (884.3, 3234.7), (14.70, 30.08), QWEN3_4B)
M4 = Machine(512, 100, (556.1, 385.0), (18.63, 28.0), HYBRID, MEMORIES)
PHONE = Machine(2681, 100, (2681 / 3.998, 2681 / 5.212), (11.6, 14.6), QWEN3_4B)


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


@needs_site
def test_mlx_goes_on_from_the_file():
    built = BeautifulSoup((SITE / "is-it-worth-it.html").read_text("utf-8"), "html.parser")
    shown = " ".join(cell.get_text() for cell in built.select(".cell_output"))
    assert re.search(r"equal tokens: True|prompt\.safetensors has \d+ tokens", shown)
