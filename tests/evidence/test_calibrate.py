"""Sums beyond an engine's accumulator: found on inputs that have them, and on no others."""

from dataclasses import replace

from _networks import save
from ane_book.cli import app
from ane_book.errors import InvalidInput
from ane_book.evidence.laws import check, laws_level
from coremltools.converters.mil import Builder as mb
from mlprogram.ane import claims, laws
import numpy as np
import pytest
from typer.testing import CliRunner

C = 64
MOST = claims.find("sum-most").value


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Two convolutions with weights of one, half a thousandth between, and a mean of squares."""
    ones = np.ones((C, C, 1, 1), np.float16)

    def network(x):
        first = mb.conv(x=x, weight=ones, name="first")
        small = mb.mul(x=first, y=np.float16(5e-4))
        return (
            mb.conv(x=small, weight=ones, name="second"),
            mb.reduce_mean(x=mb.mul(x=small, y=small), axes=[1], keep_dims=True, name="mean"),
        )

    return save(tmp_path_factory.mktemp("sums") / "sums.mlpackage", network, (1, C, 1, 32))


def sums(package, value):
    inputs = {"x0": np.full((1, C, 1, 32), value, np.float16)}
    report = laws.check(package, calibrate=inputs)
    return {f.places[0].name: f for f in report.findings if f.rule.id == "sum-most"}


def test_what_stays_below_is_not_found(package):
    assert C * 511 < MOST and sums(package, 511) == {}


def test_what_passes_is_found_where_it_does(package):
    (finding,) = sums(package, 512).values()
    assert (finding.seen, finding.severity) == ("a sum of 32,768", "warning")
    assert str(finding.places[0]) == "main, op 1 of 5, conv 'first'"


def test_a_mean_is_looked_at_as_the_sum_that_it_is_of(package):
    """(64 * 1,000 * 0.0005)^2 = 1,024, of which 64 are 65,536; the mean is far below."""
    (finding,) = sums(package, 1000).values()
    assert finding.seen.endswith(", and beyond 32,768 in 1 more")
    assert finding.places[0].name in ("first", "mean")


def test_beyond_half_precision_is_an_error(package):
    (finding,) = sums(package, 1100).values()
    assert finding.severity == "error"


def test_inputs_that_no_function_takes(package):
    with pytest.raises(InvalidInput, match="no function takes y; main takes x0"):
        laws.check(package, calibrate={"y": np.zeros(3)})


def test_golden_tokens_of_a_bundle(tiny_bundle):
    _, bundle = tiny_bundle("llama", (("head_dim", 64),))
    report = check(bundle.path, calibrate="golden")
    assert laws_level(report).figures["calibrated"]
    assert not laws_level(check(bundle.path)).figures["calibrated"]
    assert not [f for f in report.findings if f.rule.id == "sum-most"]
    rule = laws.load()["sum-most"]
    every = {"sum-most": replace(rule, claim=replace(rule.claim, value=1e-6))}
    found = check(bundle.path, every, calibrate="golden").findings
    assert {place.function for f in found for place in f.places} == {"decode", "prefill"}
    assert {place.package for f in found for place in f.places} == {
        "layers_00-03.mlpackage", "head.mlpackage",
    }  # fmt: skip


def test_from_the_command(package, tmp_path):
    np.savez(tmp_path / "x.npz", x0=np.full((1, C, 1, 32), 600, np.float16))
    words = ["check", str(package), "--calibrate", str(tmp_path / "x.npz"), "--no-github"]
    result = CliRunner().invoke(app, words)
    assert (
        result.exit_code == 0 and "main, op 1 of 5, conv 'first': a sum of 38,400" in result.stdout
    )
    result = CliRunner().invoke(app, [*words, "--fail-on", "warning"])
    assert result.exit_code == 1
