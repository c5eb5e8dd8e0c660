"""Stretches of a program, from placement to a token's time."""

from dataclasses import replace

from _networks import convolutions, save
from coremltools.converters.mil import Builder as mb
from mlprogram.ane.cost import TokenWork, parameter, predict, segments_of
from mlprogram.ane.placement import place
from mlprogram.errors import InvalidInput
import pytest

X = (1, 64, 32, 32)


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """name -> placement: in one stretch, in three with ops between that no engine takes, none."""
    twelve, folder = convolutions(12), tmp_path_factory.mktemp("segments")

    def broken(x):
        for _ in range(2):
            x = mb.cumsum(x=twelve(x), axis=3)
        return twelve(x)

    networks = {"whole": convolutions(8), "broken": broken, "small": convolutions(1)}
    return {
        name: place(save(folder / f"{name}.mlpackage", network, X))
        for name, network in networks.items()
    }


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
