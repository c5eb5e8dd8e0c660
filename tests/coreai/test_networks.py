"""Networks of `transformers`, converted by coremltools: the executor's numbers are torch's.

`test_wild.py` runs these with Core AI's runtime beside the executor.
"""

from _long import long_but
from _networks_of_transformers import CONVERTED, convert
from mlprogram import MLProgram
import numpy as np
import pytest

pytest.importorskip("transformers")


@pytest.mark.filterwarnings("ignore")  # the converter's own
@pytest.mark.parametrize("name", long_but(CONVERTED, "resnet"))
def test_a_network_of_transformers(name, tmp_path):
    given, want = convert(name, tmp_path / f"{name}.mlpackage")
    program = MLProgram(tmp_path / f"{name}.mlpackage", precision="fp32")
    found = program.predict({key: given[key] for key in program.inputs})
    for one, other in zip(found.values(), want, strict=True):
        assert np.abs(one - other).max() < 2e-2 * np.abs(other).max()
