"""Bits in a weight file: values of fewer than eight, the least significant bit first."""

from mlprogram.package.weight_file import unpack_bits
import numpy as np
import pytest


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("count", [1, 7, 24])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6])
def test_bytes_are_one_long_number(bits, count, signed):
    packed = np.random.default_rng(bits).integers(0, 256, (count * bits + 7) // 8, np.uint8)
    whole = int.from_bytes(packed.tobytes(), "little")
    expected = [whole >> bits * i & (1 << bits) - 1 for i in range(count)]
    if signed:
        expected = [value - (value >> bits - 1 << bits) for value in expected]
    assert unpack_bits(packed, bits, count, signed).tolist() == expected
