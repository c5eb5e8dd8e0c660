"""What fewer bits cost stands where they are offered, and a scheme that breaks models warns."""

import json
from pathlib import Path
import re

from _command import ane_book as command
import ane_book
from ane_book.conversion.quantize.schemes import LOSSES, percent, scheme_warning
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


def test_losses_stand_in_plans_and_readme():
    assert "`ane-book plan` shows what each cost" in " ".join(command("convert", "--help").stdout.split())
    for name in ("int8", "lut8", "lut6", "int8-tensor", "int4", "int4-channel", "lut4", "auto:5"):
        said = command("plan", "smollm2-135m-instruct", "--quant", name).stdout
        assert f"{percent(LOSSES[name])} perplexity" in " ".join(said.split()), name
    readme = (ROOT / "README.md").read_text()
    offered = re.findall(r"--quant (\S+) +# (.*)", readme)
    assert offered
    for name, comment in offered:
        assert LOSSES[name] < 0.1 and f"{percent(LOSSES[name])} perplexity" in comment


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
