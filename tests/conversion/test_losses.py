"""What fewer bits cost stands where they are offered, and a scheme that breaks models warns."""

import json
from pathlib import Path

import ane_book
from ane_book.conversion.quantize.schemes import LOSSES, scheme_warning
from ane_book.errors import SchemeWarning, UnknownModel
import pytest

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "research" / "measurements" / "quantization.json"


def test_losses_are_those_that_were_measured():
    """The library has them without the repository; an update of the record shows here."""
    results = json.loads(MEASURED.read_text())["results"]
    assert LOSSES == pytest.approx(  # noqa: SIM300 - a name in capitals is no constant of the test
        {name: row["change"] for name, row in results.items()}, rel=5e-3, abs=1e-4
    )


@pytest.mark.parametrize(
    ("quant", "head", "message"),
    [
        ("lut4", None, r"lut4 broke SmolLM2-135M: \+925 % perplexity; int8 cost \+0.7 %"),
        ("none", "lut4", "lut4 broke"),
        ("int4", None, "scales change along its input channels"),
        ("int4-channel", None, r"int4-channel broke SmolLM2-135M: \+170 %"),
    ],
)
def test_a_scheme_that_breaks_models_warns_once(quant, head, message):
    with (
        pytest.warns(SchemeWarning, match=message) as said,
        pytest.raises(UnknownModel),  # it is told before anything is done
    ):
        ane_book.convert("no-such-model", quant=quant, quant_head=head)
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.parametrize("quant", ["none", "int8", "int8-tensor", "lut8", "lut6"])
def test_others_say_nothing(quant):
    assert scheme_warning(quant) == "" and scheme_warning(None, quant) == ""
