"""Residency of bundles without a Mac: their level, what their programs are given, their states."""

from pathlib import Path
import sys

from _long import long_but
from _patience import HANGING
from ane_book.evidence.residency import bundle_level, measure_each
from mlprogram.ane.mac.residency import measure
from mlprogram.ane.mac.verdict import Residency
import numpy as np
import pytest

MAC = Path(__file__).parents[1] / "ane" / "mac" / "_mac.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")


def test_a_bundles_level_counts_what_is_slower_than_the_cpu():
    figures = {"soaked": 25, "speed_to_cpu": 2.0}
    found = {
        "fast": Residency("resident", "it is", figures),
        "slow": Residency("resident", "it is", figures | {"soaked": 1, "speed_to_cpu": 0.25}),
    }
    level = bundle_level(found)
    assert level.status == "passed" and level.figures["slower_than_cpu"] == 1
    assert level.figures["soak"] == 1
    assert level.reason.endswith("2 functions run on the ANE, 1 of them slower than the CPU alone")


def test_a_bundles_level_names_wrong_numbers_before_all_else():
    found = {
        "a": Residency("elsewhere", "planned on the CPU"),
        "b": Residency("numbers", "state 'keys' does not hold"),
        "c": Residency("resident", "it is"),
    }
    level = bundle_level(found)
    assert level.reason.startswith("1 of 3 functions run on the ANE; b: numbers: state 'keys'")


class TestInputs:
    """The child copies what it is given."""

    def given(self, path: Path, tmp_path: Path, function: str | None = None):
        copy = (
            "import pathlib, shutil, sys; own = pathlib.Path(sys.argv[2]).with_name('inputs.npz'); "
            "shutil.copy(own, sys.argv[1])"
        )
        for key, found in measure_each(
            path, function, command=[sys.executable, "-c", copy, str(tmp_path / "given.npz")]
        ):
            with np.load(tmp_path / "given.npz") as file:
                yield key, found, dict(file)

    @pytest.mark.parametrize("kv", ["state", "host"])
    def test_a_bundles_programs_get_its_golden_tokens(self, tiny_bundle, tmp_path, kv):
        bundle = tiny_bundle("llama", kv=kv, tiers=(16,))[1]
        golden, keys = bundle.golden(), []
        for key, found, inputs in self.given(bundle.path, tmp_path):
            function = bundle.manifest.tiered.get(key.split()[-1])
            keys.append(key)
            assert found.figures["inputs"] == "golden", key
            first = golden["hidden"][0 if key.startswith("layers") else -1]
            T = inputs["hidden"].shape[3]
            expected = first[:, :T].astype(np.float16)
            assert np.array_equal(inputs["hidden"][0, :, 0, : expected.shape[1]], expected), key
            if key.startswith("layers"):
                T, S = function
                (mask,) = (a for a in inputs.values() if a.shape == (1, 1, T, S + T))
                assert inputs.get("position", 0) == 0 and (mask[..., :S] == -40_000).all()
                assert (mask[..., S:] == 0).sum() == T * (T + 1) // 2
                caches = [a for a in inputs.values() if a.shape[2:3] == (S,)]
                assert len(caches) == (2 if kv == "host" else 0)
                assert not any(cache.any() for cache in caches)
        functions = {key.split()[-1] for key in keys}
        assert functions == {"decode", "prefill", "decode_s16", "prefill_s16"}

    def test_what_goes_past_experts_is_random(self, tagger, tmp_path):
        bundle = tagger("narrow", experts="dispatch")[1]
        which = {
            key.split()[0]: found.figures["inputs"]
            for key, found, _ in self.given(bundle.path, tmp_path, "encode_64")
        }
        assert which["trunk_00.mlpackage"] == "golden"
        assert which["trunk_01.mlpackage"] == "partly golden"


class TestStates:
    """Rows that two calls write, one behind the other, read back from the states."""

    def measured(self, bundle, function: str):
        command = [sys.executable, str(MAC), "forget"]
        package = bundle.path / bundle.manifest.shards[0].package
        return measure(package, function, command=command, soak=1, timeout=HANGING)

    @pytest.mark.parametrize(
        ("function", "form"),
        long_but([("decode", "rows"), ("prefill", "apple")], ("decode", "rows")),
    )
    def test_a_state_that_is_lost_is_named_and_how_to_convert(self, tiny_bundle, function, form):
        _, bundle = tiny_bundle("llama", kv="state", state_write="update", form=form)
        found = self.measured(bundle, function)
        assert found.verdict == "numbers"
        assert "state 'keys' does not hold after two calls what the first one wrote" in found.reason
        assert "convert with --state-write select, or --kv host (claim state-slice)" in found.reason

    @pytest.mark.parametrize("form", long_but(["rows", "apple"], "rows"))
    def test_the_remedy_holds_there(self, tiny_bundle, form):
        """That neither is wrong elsewhere is shown by `test_as_a_mac.py`."""
        _, select = tiny_bundle("llama", kv="state", state_write="select", form=form)
        assert self.measured(select, "prefill").verdict == "resident"
