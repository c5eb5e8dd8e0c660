"""Parity of a bundle whose experts are programs: each is judged, whether a golden token chose it.

The faults are planted in copies of a tagger's bundle with three layers of eight experts.
"""

from _long import long_but
from _plant import change_weight, copied, flip
from _taggers import tiny_tagger, write_tagger
from ane_book.bundle import Bundle
from ane_book.conversion.rebuild import Rebuild
from ane_book.evidence.parity import EXACT as LIMIT
from ane_book.evidence.parity import LEAST, check_parity
from ane_book.evidence.parity.stage import judged
from ane_book.evidence.parity.walk import walk
from ane_book.weights import open_source
import numpy as np
import pytest


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tagger(tiny_tagger("narrow"), tmp_path_factory.mktemp("source"))


@pytest.fixture
def faulty(tagger, tmp_path):
    return copied(tagger("narrow", experts="dispatch")[1], tmp_path)


def negate(weight: np.ndarray) -> None:
    np.negative(weight, out=weight)


def test_what_conversion_writes_passes(tagger):
    bundle = tagger("narrow", experts="dispatch")[1]
    found = check_parity(bundle)
    assert found.passed, found.reason
    names = [stage.name for stage in found.stages if stage.precision == "fp32"]
    assert names[0] == "embedding" and names[-1] == "whole" and len(names) == 1 + 4 + 3 + 1


@pytest.mark.parametrize("unchosen", long_but([False, True], True))
def test_a_wrong_weight_of_an_expert_is_named(faulty, unchosen):
    """One that golden tokens choose, and the one that the fewest of them choose."""
    gates = Bundle.open(faulty).golden()["gates"][1]
    expert = int((gates != 0).sum(axis=1).argsort()[0 if unchosen else -1])
    package = f"layer_01_expert_{expert:03d}.mlpackage"
    change_weight(faulty / package, "down_weight_to_fp16", negate)
    found = check_parity(faulty)
    assert not found.passed and found.package == package


def test_with_its_source_the_op_is_named(source, faulty):
    package = "layer_02_expert_003.mlpackage"
    change_weight(faulty / package, "down_weight_to_fp16", flip)
    found = check_parity(faulty, source)
    assert not found.passed
    assert (found.package, found.first.op) == (package, "conv"), found.reason


def test_a_package_is_written_again_to_the_byte(tagger, source, tmp_path):
    bundle = tagger("narrow", experts="dispatch")[1]
    again = Rebuild(bundle, open_source(source), tmp_path)
    for name in ("trunk_00", "trunk_02", "trunk_03", "layer_01_expert_005"):
        package = bundle.path / f"{name}.mlpackage"
        written = again.package(package.name)
        for file in (file for file in package.rglob("*") if file.is_file()):
            other = written / file.relative_to(package)
            assert other.read_bytes() == file.read_bytes(), file


class TestRouted:
    """Tokens that choose among experts within a program, in half precision."""

    def columns(self, tokens: int, turned: int) -> tuple[np.ndarray, np.ndarray]:
        expected = np.random.default_rng(0).normal(size=(8, tokens))
        found = expected.copy()
        found[:, :turned] *= -1
        return found, expected

    def test_a_tenth_of_the_tokens_may_take_other_experts(self):
        for turned, passes in ((6, True), (7, True), (8, False)):
            stage = judged("a", "prefill", "fp16", *self.columns(64, turned), routed=True)
            assert (stage.cosine > LEAST) == passes, turned

    def test_not_in_single_precision_and_nowhere_else(self):
        for precision, routed in (("fp32", True), ("fp16", False)):
            stage = judged("a", "prefill", precision, *self.columns(64, 1), routed=routed)
            assert stage.cosine < LEAST

    def test_one_token_is_never_spared(self):
        assert judged("a", "decode", "fp16", *self.columns(1, 1), routed=True).cosine < LEAST


def test_a_quiet_expert_is_held_to_the_loudest(faulty):
    """More than the limit of what it says itself, as of a small difference of large numbers."""
    with np.load(faulty / "golden.npz") as file:
        golden = dict(file)
    said = golden["experts"][1]
    quiet = int(np.abs(said).max(axis=1).argmin())
    off = 1.3e-4 * np.abs(said[quiet]).max()
    assert np.abs(said[quiet]).max() < 0.6 * np.abs(said).max()
    said[quiet, np.abs(said[quiet]).argmin()] += off
    stages = list(walk(Bundle.open(faulty), golden, "fp32"))
    assert max(s.error for s in stages if s.name.startswith("layer_01")) < LIMIT
