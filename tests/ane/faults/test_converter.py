"""Each fault of the converter: found in the package that a version with it makes of a PyTorch
module, whose numbers are others than PyTorch's, and in no near miss.

The quick tests convert with the installed coremltools; what it does not have is built as an older
or later version writes it. The long ones run each version that ANE_BOOK_COREMLTOOLS, a folder of
environments NAME/bin/python, has at hand.
"""

import json
import os
from pathlib import Path

from _converters import (
    CASES,
    DIVIDED,
    LOWEST,
    Called,
    Case,
    agrees,
    convert,
    expected,
    integers,
    noise,
)
from _pairs import Cases
import coremltools as ct
from coremltools.converters.mil import Builder as mb
import mlprogram
from mlprogram.ane import faults, laws
from mlprogram.ane.faults.versions import OF_COREMLTOOLS
import numpy as np
import pytest
from run_converters import AFTER, RECORD, inside, judged, run
import torch

NAMES = sorted(CASES)
HERE = [name for name in NAMES if inside(name, ct.__version__)]
RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
VERSIONS = list(RECORDED["versions"])
#: What differs for another reason: 6.3.0 masks in fp32 and casts the result.
OTHERWISE = {("sentinel-added", "6.3.0"), ("sentinel-selected", "6.3.0")}
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


@pytest.mark.filterwarnings("ignore:Output, '\\d+', of the source model")
@pytest.mark.parametrize(("length", "faults"), [(3, {"narrow-empty"}), (2, set())], ids=str)
def test_a_slice_of_a_flexible_axis_that_ends_at_0_is_empty(length, faults):
    sliced = Called(lambda x: x.narrow(1, -3, length) * 2).eval()
    module = torch.jit.trace(sliced, torch.ones(2, 8))
    shape = (2, ct.RangeDim(4, 16, default=8))
    made = ct.convert(
        module, inputs=[ct.TensorType("x0", shape)], convert_to="mlprogram", skip_model_load=True
    )
    assert found(made) == faults


def converted(function, *inputs, half=True):
    """An MLModel of a function, traced, by the installed coremltools."""
    return convert(Case(function, function, inputs, half=half))


def everything(model) -> set[str]:
    return {finding.rule.id for finding in laws.check(model, faults.load()).findings}


CAUSAL = torch.ones(4, 4, dtype=torch.bool).tril()
#: A computed mask may hide a row; of a constant one it is known.
HIDING = {
    "where": (lambda x, m: torch.where(m > 0, x, LOWEST), "sentinel-selected"),
    "added": (lambda x, m: x + torch.zeros(4, 4).masked_fill(m > 0, LOWEST), "sentinel-selected"),
    "overflows": (lambda x, m: x.masked_fill(m > 0, -1e9), "mask-overflows"),
    "constant": (lambda x, m: m + x.masked_fill(CAUSAL, LOWEST), "sentinel-selected"),
    "causal": (lambda x, m: m + x.masked_fill(~CAUSAL, LOWEST), None),
}


@pytest.mark.parametrize("name", HIDING)
def test_a_select_hides_a_row_that_is_hidden_throughout(name):
    mask, fault = HIDING[name]
    model = converted(lambda x, m: torch.softmax(mask(x, m), -1), noise(4, 4), torch.ones(4, 4))
    assert found(model) == ({fault} if fault else set())


def truncated(x, y):
    size = torch.floor_divide(x.abs(), y.abs()).to(torch.int32)
    return size * x.sign() * y.sign()


REMEDIES = {
    "floor": lambda x, y: torch.floor_divide(x, y).to(torch.int32), "trunc": truncated
}  # fmt: skip


@pytest.mark.parametrize("half", [True, False], ids=["half", "single"])
@pytest.mark.parametrize("mode", REMEDIES)
def test_the_remedy_for_a_quotient_of_integers_keeps_them(mode, half, tmp_path):
    """The quotient in floats loses these."""
    x, y = integers(5_001, -40_001, 16_777_219), integers(1, 2, -1)
    model = converted(REMEDIES[mode], x, y, half=half)
    assert everything(model) == set()
    model.save(str(tmp_path / "a.mlpackage"))
    program = mlprogram.open(str(tmp_path / "a.mlpackage"))
    values = dict(zip(program.inputs, (x.numpy(), y.numpy()), strict=True))
    (quotient,) = program.predict(values).values()
    assert (quotient == torch.div(x, y, rounding_mode=mode).numpy()).all()


def test_the_remedy_for_a_clamp_of_integers_keeps_them(tmp_path):
    bound, x = integers(40_000), integers(5_001, -40_001, 40_003)
    model = converted(lambda x: torch.minimum(x, bound), x)
    assert everything(model) == set()
    model.save(str(tmp_path / "a.mlpackage"))
    (clipped,) = mlprogram.open(str(tmp_path / "a.mlpackage")).predict({"x0": x.numpy()}).values()
    assert clipped.tolist() == [5_001, -40_001, 40_000]


@pytest.mark.parametrize("half", [True, False], ids=["half", "single"])
def test_a_quotient_by_a_constant_is_met(half):
    """Which coremltools writes as a product with 0.333."""
    model = converted(lambda x: torch.div(x, 3, rounding_mode="trunc"), DIVIDED[0], half=half)
    assert everything(model) == {"div-trunc-integer"}


def test_the_remedy_for_log_softmax_has_no_other_fault():
    assert everything(convert(CASES["log-of-softmax"], near=True)) == set()


def test_the_special_case_is_reported_alone():
    assert everything(convert(CASES["roll-negative"])) == {"roll-negative"}


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
