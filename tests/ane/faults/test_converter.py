"""Each fault of the converter: found in the package that a version with it makes of a PyTorch
module, whose numbers are others than PyTorch's, and in no near miss.

The quick tests convert with the installed coremltools; what it does not have is built as an older
or later version writes it. The long ones run each version that ANE_BOOK_COREMLTOOLS, a folder of
environments NAME/bin/python, has at hand.
"""

import json
import os
from pathlib import Path

from _converters import CASES, agrees, convert, expected
from _pairs import Cases
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from mlprogram.ane import faults, laws
from mlprogram.ane.faults.versions import OF_COREMLTOOLS
import numpy as np
import pytest
from run_converters import AFTER, RECORD, inside, judged, run

NAMES = sorted(CASES)
HERE = [name for name in NAMES if inside(name, ct.__version__)]
RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
VERSIONS = list(RECORDED["versions"])
#: What differs for another reason: 6.3.0 adds the mask in fp32 and casts the sum.
OTHERWISE = {("sentinel-added", "6.3.0")}
ENVIRONMENTS = os.environ.get("ANE_BOOK_COREMLTOOLS", "")


def found(model, system: str = "") -> set[str]:
    """The converter's faults in a package."""
    seen = {finding.rule.id for finding in laws.check(model, faults.load(system)).findings}
    return seen & set(CASES)


class TestInstalled:
    @pytest.mark.parametrize("name", HERE)
    def test_a_module_is_converted_to_other_numbers_and_the_fault_is_found(self, name, tmp_path):
        made = convert(CASES[name])
        assert found(made) == {name}
        made.save(str(tmp_path / "made.mlpackage"))
        assert not judged(tmp_path / "made.mlpackage", name, CASES[name])["agrees"]

    @pytest.mark.parametrize("name", NAMES)
    def test_a_near_miss_has_none(self, name):
        assert found(convert(CASES[name], near=True)) == set()

    @pytest.mark.parametrize("name", sorted(set(NAMES) - set(HERE)))
    def test_what_it_does_not_have_is_right(self, name, tmp_path):
        made = convert(CASES[name])
        assert found(made) == set()
        made.save(str(tmp_path / "made.mlpackage"))
        assert judged(tmp_path / "made.mlpackage", name, CASES[name])["agrees"]


SCORES = (1, 4, 4)


def clamp_bounds_cut(near):
    @mb.program(input_specs=[mb.TensorSpec((3,), dtype=ct.converters.mil.mil.types.int32)])
    def program(x):
        clipped = mb.clip(x=mb.cast(x=x, dtype="fp32"), alpha=0.0 if near else 0.5, beta=2.5 - 0.5)
        return mb.cast(x=clipped, dtype="int32")

    return program


def attention_mask_added(near):
    mask = np.tril(np.ones(SCORES, np.float32))

    @mb.program(input_specs=[mb.TensorSpec(SCORES)])
    def program(x):
        scores = mb.matmul(x=x, y=x, transpose_y=True)
        return mb.softmax(x=mb.add(x=scores, y=(1 - mask) * -1e4 if near else mask), axis=-1)

    return program


def gelu_slope(near):
    @mb.program(input_specs=[mb.TensorSpec((3,))])
    def program(x):
        return mb.gelu(x=x, mode="TANH_APPROXIMATION" if near else "SIGMOID_APPROXIMATION")

    return program


@pytest.mark.parametrize("near", [False, True], ids=["planted", "near"])
@pytest.mark.parametrize(
    ("build", "version"),
    [(clamp_bounds_cut, "8.0"), (attention_mask_added, "8.0"), (gelu_slope, "9.1.dev1")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_another_version_writes(build, version, near):
    precision = ct.precision.FLOAT32
    made = ct.convert(build(near), compute_precision=precision, skip_model_load=True)
    spec = made.get_spec()
    spec.description.metadata.userDefined[OF_COREMLTOOLS + "version"] = version
    spec.description.metadata.userDefined[OF_COREMLTOOLS + "source"] = "torch==2.4.0"
    model = ct.models.MLModel(spec, weights_dir=made.weights_dir, skip_model_load=True)
    assert found(model) == (set() if near else {build.__name__.replace("_", "-")})
    assert found(made) == set()  # as the installed version made it


class TestRecord:
    def test_each_fault_has_a_module_and_a_record(self):
        assert set(CASES) == Cases.of_file("converter.toml") == set(RECORDED["faults"])

    @pytest.mark.parametrize("name", NAMES)
    def test_the_versions_that_have_a_fault_are_those_that_differ(self, name):
        assert agrees_with(name, expected(CASES[name]))
        came = {version: RECORDED["faults"][name][version] for version in VERSIONS}
        made = {version: one for version, one in came.items() if "refused" not in one}
        having = {version for version in made if inside(name, version)}
        differing = {version for version, one in made.items() if not one["agrees"]}
        assert having == {version for version, one in made.items() if one["met"]}
        assert having == differing - {version for fault, version in OTHERWISE if fault == name}
        first = next(version for version in VERSIONS if version in having)
        assert faults.load()[name].since == ("" if first == VERSIONS[0] else first)

    def test_twenty_two_faults_were_run_by_a_version_that_is_right(self):
        records = [RECORDED["faults"][name] for name in NAMES]
        right = [any(one[version].get("agrees") for version in VERSIONS) for one in records]
        assert sum(right) >= 22

    def test_main_stands_for_what_comes_after_its_version(self):
        assert RECORDED["versions"]["main"]["coremltools"] == "9.1.dev1"
        untils = {fault.until for fault in faults.load().values() if fault.of == "coremltools"}
        assert untils <= {"", AFTER, *VERSIONS}


def agrees_with(name: str, now: np.ndarray) -> bool:
    """Whether PyTorch still computes what the record says that it did."""
    then = RECORDED["faults"][name]["torch"]
    numbers = np.array([float(number) for number in then["numbers"]])
    few = now.ravel()[: len(numbers)].astype(float)
    same_type = (then["dtype"], then["shape"]) == (str(now.dtype), list(now.shape))
    return same_type and agrees(numbers, few, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_makes_what_the_record_says(version, tmp_path):
    python = Path(ENVIRONMENTS, version, "bin/python")
    if not ENVIRONMENTS or not python.exists():
        pytest.skip(f"ANE_BOOK_COREMLTOOLS names no folder with {version}/bin/python")
    versions, came = run(python, tmp_path, NAMES)
    assert versions["coremltools"] == RECORDED["versions"][version]["coremltools"]
    for name, now in came.items():
        then = RECORDED["faults"][name][version]
        assert {key: now.get(key) for key in ("agrees", "met")} == {
            key: then.get(key) for key in ("agrees", "met")
        }, name
        assert ("refused" in now) == ("refused" in then), name
