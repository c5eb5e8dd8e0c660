"""Stretches of a program, from placement to a token's time."""

from dataclasses import replace

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from mlprogram.ane.cost import TokenWork, parameter, predict, segments_of
from mlprogram.ane.placement import place
from mlprogram.errors import InvalidInput
import numpy as np
import pytest

X = (1, 64, 32, 32)


def convolved(x, count: int):
    """As many 3x3 convolutions: four pay for a way to the engine, two do not."""
    weight = np.full((64, 64, 3, 3), 0.01, np.float16)
    for _ in range(count):
        x = mb.relu(x=mb.conv(x=x, weight=weight, pad_type="same"))
    return x


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """name -> placement: in one stretch, in three with ops between that no engine takes, none."""
    folder = tmp_path_factory.mktemp("segments")

    def whole(x):
        return convolved(x, 8)

    def broken(x):
        for _ in range(2):
            x = mb.cumsum(x=convolved(x, 12), axis=3)
        return convolved(x, 12)

    def small(x):
        return convolved(x, 1)

    found = {}
    for network in (whole, broken, small):
        spec = [mb.TensorSpec(shape=X, dtype=ct.converters.mil.mil.types.fp16)]
        program = mb.program(input_specs=spec, opset_version=ct.target.iOS18)(network)
        model = ct.convert(program, skip_model_load=True, minimum_deployment_target=ct.target.iOS18)
        path = folder / f"{network.__name__}.mlpackage"
        model.save(str(path))
        found[network.__name__] = place(path)
    return found


def test_only_the_stretches_beyond_the_first_count(placed):
    assert placed["whole"].best.partitions == 1 and placed["broken"].best.partitions == 3
    assert segments_of([placed["whole"]]) == 0
    assert segments_of([placed["whole"], placed["broken"], placed["broken"]]) == 4


def test_they_lengthen_a_token(placed):
    work = TokenWork(10**8, 0, 0, 2)
    further = segments_of([placed["whole"], placed["broken"]])
    before, after = predict(work, "m4").ms, predict(replace(work, segments=further), "m4").ms
    low, high = parameter("segment").value
    assert after.low - before.low == pytest.approx(2 * low)
    assert after.high - before.high == pytest.approx(2 * high)


def test_a_program_on_the_cpu_has_no_time_on_the_engine(placed):
    with pytest.raises(InvalidInput, match=r"small\.mlpackage, main: .* on the CPU"):
        segments_of([placed["whole"], placed["small"]])
