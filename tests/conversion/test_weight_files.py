"""Weights beyond the limit of a file go to the next one: in bundles, graphs, what reads them."""

import os
from pathlib import Path
import shutil

from _command import ane_book as command
import ane_book
from ane_book.bundle import Bundle
from ane_book.conversion.plan import plan
from ane_book.conversion.write.program import PackageWriter
from ane_book.errors import InvalidBundle, InvalidInput
from ane_book.runtime import Session
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from mlprogram import MLProgram
from mlprogram.ane import laws
from mlprogram.ane.placement.placed import place
from mlprogram.contents import inspect_package
from mlprogram.package import weight_files
from mlprogram.package.container import save
from mlprogram.package.reader import Package
from mlprogram.package.weight_file import NUMPY, SUB_BYTE
from mlprogram.package.weight_files import WeightFiles, file_sizes, spread_weights
import numpy as np
import pytest
import torch

LIMIT = 25_000  # bytes of a file here; the largest blob of the tiny model is a little smaller
PROMPT = [72, 101, 108, 108, 111]
WEIGHTS = Path("Data/com.apple.CoreML/weights")


def files(package: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in (package / WEIGHTS).iterdir()}


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    """Two bundles of one model: one file a package, and several."""
    folder, made = tiny("llama")[1], []
    for limit in (weight_files.FILE_LIMIT, LIMIT):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(weight_files, "FILE_LIMIT", limit)
            out = tmp_path_factory.mktemp("bundles") / "b"
            recipe = {"context": 32, "prefill": 8, "head_rows": 100, "quant": "lut4"}
            made.append(ane_book.convert(str(folder), out=out, **recipe))
    return made


def test_a_file_ends_where_the_next_blob_would_pass_the_limit(monkeypatch):
    monkeypatch.setattr(weight_files, "FILE_LIMIT", 1000)
    assert file_sizes([]) == ()
    assert file_sizes([872]) == (1000,)
    assert file_sizes([372, 372]) == (500 + 12 + 64 + 372,)
    assert file_sizes([372, 425, 1]) == (500, 64 + 64 + 425 + 23 + 64 + 1)
    assert file_sizes([10, 5000, 10]) == (138, 5128, 138)  # one that is larger is alone


class TestBundles:
    def test_the_packages_are_laid_out_as_planned(self, pair, monkeypatch):
        monkeypatch.setattr(weight_files, "FILE_LIMIT", LIMIT)
        bundle = pair[1]
        for program in plan(bundle.config, bundle.recipe).programs:
            names = ["weight.bin", *(f"weight_{i}.bin" for i in range(1, len(program.files)))]
            assert files(bundle.path / program.package) == dict(
                zip(names, program.files, strict=True)
            )
            assert max(program.files) <= LIMIT
        assert len(files(bundle.path / bundle.manifest.shards[0].package)) > 1

    def test_they_compute_the_same(self, pair):
        one, several = map(Session, pair)
        np.testing.assert_array_equal(several.logits(PROMPT), one.logits(PROMPT))
        for token in PROMPT:
            np.testing.assert_array_equal(several.decode(token), one.decode(token))

    def test_every_file_is_in_the_manifest_and_is_verified(self, pair, tmp_path):
        folder = Path(shutil.copytree(pair[1].path, tmp_path / "copy"))
        named = {name for name in Bundle.open(folder).manifest.files if name.endswith(".bin")}
        assert named >= {
            str(file.relative_to(folder)) for file in folder.rglob("weights/weight*.bin")
        }
        assert "are as they were written" in command("inspect", str(folder), "--checksums").stdout
        file = next(folder.rglob("weight_1.bin"))
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(InvalidBundle, match=r"weight_1\.bin"):
            Bundle.open(folder).verify()

    def test_saved_and_compiled_they_keep_their_files(self, pair, tmp_path):
        package = pair[1].path / pair[1].manifest.shards[0].package
        save(package, tmp_path / "a.mlmodelc")
        save(tmp_path / "a.mlmodelc", tmp_path / "a.mlpackage")
        assert files(tmp_path / "a.mlpackage") == files(package)
        weights = [inspect_package(path)["weights"] for path in (package, tmp_path / "a.mlmodelc")]
        assert weights[0] == weights[1]
        expected = MLProgram(package, "decode")
        given = expected.random_inputs(0) | {"position": np.array([0], np.int32)}
        outputs = expected.predict(given, expected.make_state())
        for name in ("a.mlmodelc", "a.mlpackage"):
            program = MLProgram(tmp_path / name, "decode")
            found = program.predict(given, program.make_state())
            np.testing.assert_array_equal(found["hidden_out"], outputs["hidden_out"])


def test_files_are_byte_for_byte_those_of_coremltools(tmp_path):
    from coremltools.libmilstoragepython import _BlobStorageWriter

    ours, draw = WeightFiles(tmp_path), np.random.default_rng(0)
    theirs = _BlobStorageWriter(str(tmp_path / "theirs.bin"))
    for dtype, bits in [*SUB_BYTE.items(), ("int8", 8), ("uint8", 8), ("fp16", 16)]:
        for count in (1, 5, 8, 13, 64, 1000):
            least = -(1 << (bits - 1)) if dtype.startswith("int") else 0
            numbers = draw.integers(least, least + (1 << min(bits, 10)), count)
            array = numbers.astype(NUMPY[dtype])
            raw = array.view(np.uint16) if dtype == "fp16" else array
            assert ours.write("w", dtype, array)[1] == getattr(theirs, f"write_{dtype}_data")(raw)
    del theirs
    assert (tmp_path / "weight.bin").read_bytes() == (tmp_path / "theirs.bin").read_bytes()


def test_a_weight_that_fits_in_no_file_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_files, "FILE_LIMIT", 1000)
    monkeypatch.setattr(weight_files, "MOST", 5000)
    package = PackageWriter(tmp_path / "p.mlpackage")
    package.write_weights({"small": torch.zeros(2000, 1)})
    with pytest.raises(InvalidInput, match=r"the weight head\.3 takes 5,128 bytes.*--head-rows"):
        package.write_weights({"head.3": torch.zeros(2500, 1)})


# --- packages of coremltools


def chain(path: Path, matrices: int = 4) -> Path:
    """A package as coremltools writes it: products with matrices of 8,192 bytes, one used twice."""

    @mb.program(input_specs=[mb.TensorSpec((1, 64))], opset_version=ct.target.iOS18)
    def program(x):
        draw = np.random.default_rng(0)
        for _ in range(matrices):
            w = mb.const(val=(draw.standard_normal((64, 64)) / 8).astype(np.float32))
            x = mb.matmul(x=mb.matmul(x=x, y=w), y=w)
        return x

    target = ct.target.iOS18
    ct.convert(program, skip_model_load=True, minimum_deployment_target=target).save(str(path))
    return path


class TestPackagesOfCoremltools:
    def test_spread_over_several_files_they_compute_the_same(self, tmp_path, monkeypatch):
        one, several = chain(tmp_path / "one.mlpackage"), chain(tmp_path / "several.mlpackage")
        spread_weights(several)
        assert files(several) == files(one)  # below a gigabyte nothing changes
        monkeypatch.setattr(weight_files, "FILE_LIMIT", 20_000)
        spread_weights(several)
        assert [*sorted(files(several))] == ["weight.bin", "weight_1.bin"]
        assert not [*several.rglob("whole.bin")]
        given = {"x": np.random.default_rng(1).standard_normal((1, 64), np.float32)}
        for key, value in MLProgram(one).predict(given).items():
            np.testing.assert_array_equal(MLProgram(several).predict(given)[key], value)
        arrays = ([c.array() for _, c in Package(p).weights] for p in (one, several))
        for first, second in zip(*arrays, strict=True):
            np.testing.assert_array_equal(first, second)

    def test_coremltools_reads_them(self, tmp_path, monkeypatch):
        """Its own optimiser reads each constant of the file that the program names."""
        monkeypatch.setattr(weight_files, "FILE_LIMIT", 20_000)
        package = chain(tmp_path / "several.mlpackage")
        spread_weights(package)
        model = ct.models.MLModel(str(package), skip_model_load=True)
        found = ct.optimize.coreml.get_weights_metadata(model, weight_threshold=1000)
        expected = {c.array().tobytes() for _, c in Package(package).weights}
        assert {weight.val.tobytes() for weight in found.values()} == expected

    def test_laws_and_placement_look_at_the_largest_file(self, tmp_path, monkeypatch):
        package = chain(tmp_path / "p.mlpackage")
        monkeypatch.setattr(weight_files, "FILE_LIMIT", 20_000)
        spread_weights(package)
        largest = laws.rules.weights.largest_file(Package(package))
        assert largest == 2 * 8192 < laws.rules.weights.weight_bytes(Package(package)) == 4 * 8192
        for name in files(package):
            os.truncate(package / WEIGHTS / name, 900_000_000)  # a hole takes no room
        assert "program-2gb" not in {each.support.claim for each in place(package).placed}
        os.truncate(package / WEIGHTS / "weight_1.bin", 2**31 + 1)
        assert {each.support.claim for each in place(package).placed} == {"program-2gb"}

    def test_a_constant_that_fits_in_no_file_is_refused_by_its_ops_name(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(weight_files, "FILE_LIMIT", 2000)
        monkeypatch.setattr(weight_files, "MOST", 8000)
        package = chain(tmp_path / "p.mlpackage")
        name = Package(package).weights[0][0]
        with pytest.raises(InvalidInput, match=f"the weight {name} takes 8,320 bytes"):
            spread_weights(package)
