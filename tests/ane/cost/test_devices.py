"""The memory of devices: sourced, compared with both counts of what is wired."""

from types import SimpleNamespace

from mlprogram.ane import claims
from mlprogram.ane.cost.chips import DATA
from mlprogram.ane.cost.devices import devices, find_device
from mlprogram.errors import InvalidInput
import pytest

GB = 10**9


def wired(shared: int, copied: int, caches: int = 0) -> SimpleNamespace:
    """What is wired if functions share their weights, and if each has a copy."""
    return SimpleNamespace(least=shared + caches, most=copied + caches)


@pytest.mark.parametrize(
    ("device", "one", "verdict"),
    [
        ("iphone-13", wired(1 * GB, 3 * GB, GB), "yes"),
        ("iPhone 13", wired(2 * GB, 4 * GB, 1), "depends"),
        ("4GB", wired(3 * GB, 6 * GB), "depends"),
        ("iphone-13", wired(4 * GB, 8 * GB, 1), "no"),
        ("iphone-12-mini", wired(1, 2), "unknown"),
    ],
)
def test_verdict(device, one, verdict):
    memory = find_device(device)
    assert memory.verdict(one) == verdict
    head = next(memory.rows(one))[1]
    assert ("warning" in head) == (verdict in ("no", "depends"))
    assert ("unknown" in head) == (verdict == "unknown")


def test_the_limit_of_an_app_is_named_with_what_is_not_known_of_it():
    lines = [text for _, text in find_device("iphone-15-pro").rows(wired(2 * GB, 4 * GB))]
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert "more than 3.00 GB" in warning and "is not known" in warning
    lines = [text for _, text in find_device("iphone-15-pro").rows(wired(2 * GB, 7 * GB))]
    assert any("more than 6.00 GB" in line for line in lines)
    lines = [text for _, text in find_device("iphone-15-pro").rows(wired(1 * GB, 2 * GB))]
    assert not any("warning" in line for line in lines)


def test_every_row_has_a_source_and_no_app_takes_more_than_its_device_has():
    known = claims.load(DATA / "devices.toml")
    assert all(claim.unit == "GB" and claim.support for claim in known.values())
    for name in devices():
        device = find_device(name)
        if device.bytes and device.app:
            assert device.app[1] < device.bytes, name


def test_a_device_that_nobody_described_is_refused():
    with pytest.raises(InvalidInput, match=r"'pixel' is unknown: write a size, such as 16GB"):
        find_device("pixel")
