"""Whose fault, in which versions, on which systems: what a package names decides, and what it
does not name may have it."""

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from mlprogram.ane import faults, laws
from mlprogram.ane.claims import Citation, Claim
from mlprogram.ane.faults.fault import Fault
from mlprogram.ane.faults.versions import Makers, makers_of, version
from mlprogram.errors import InvalidInput
from mlprogram.package.reader import Package
import pytest


def fault(**known) -> Fault:
    claim = Claim("f", "it differs", "run", (Citation("apple/coremltools#1", "so"),))
    return Fault(claim, "error", "ops", "other ops", **known)


NEW, OLD = Makers("9.0", "torch==2.13.0", 18), Makers("8.3.0", "torch==2.7.0", 15)
UNKNOWN = Makers()


@pytest.mark.parametrize(
    ("known", "makers", "system", "applies"),
    [
        ({"of": "coremltools"}, NEW, "", True),
        ({"of": "coremltools", "since": "9.0", "until": "9.1.dev1"}, NEW, "", True),
        ({"of": "coremltools", "since": "9.0"}, OLD, "", False),
        ({"of": "coremltools", "until": "8.3"}, OLD, "", False),
        ({"of": "coremltools", "since": "9.0"}, UNKNOWN, "", True),
        ({"of": "coremltools", "frontend": "torch"}, NEW, "", True),
        ({"of": "coremltools", "frontend": "torch"}, Makers("9.0", "milinternal", 18), "", False),
        ({"of": "coremltools", "frontend": "torch"}, Makers("9.0"), "", True),
        ({"systems": ("macos26",)}, NEW, "", True),
        ({"systems": ("macos26",)}, NEW, "macos26.4", True),
        ({"systems": ("macos26.5",)}, NEW, "macos26", True),
        ({"systems": ("macos26.5",)}, NEW, "macos26.4", False),
        ({"systems": ("macos26",)}, NEW, "ios26", True),
        ({"systems": ("macos26",)}, NEW, "macos27", False),
        ({"systems": ("macos12",)}, NEW, "", False),  # which cannot read the package
        ({"systems": ("macos12",)}, UNKNOWN, "", True),
        ({"systems": ("macos15",)}, NEW, "ios18", True),
        ({"since": "macos26"}, NEW, "macos15", False),
        ({"since": "macos26"}, NEW, "", True),
        ({"since": "macos26.4"}, NEW, "macos26", True),
        ({"until": "macos15"}, NEW, "", False),
        ({"until": "macos15"}, OLD, "", True),
        ({"until": "macos26.4"}, NEW, "macos26.4", False),
        ({}, NEW, "macos27", True),
    ],
)
def test_a_fault_applies_where_it_may_be(known, makers, system, applies):
    assert fault(**known).applies(makers, system) is applies


def test_versions_are_in_order():
    names = ["7.2", "8.0b1", "8.0", "8.3.0", "9.0", "9.1.dev1", "9.1"]
    assert sorted(reversed(names), key=version) == names


@pytest.mark.parametrize("wrong", ["macos99", "macos16", "ios20", "ios9"])
def test_a_system_that_is_not_known_is_refused(wrong):
    with pytest.raises(InvalidInput, match=f"'{wrong}': no such system is known; name one of"):
        faults.load(system=wrong)


def test_a_coremltools_before_ml_programs_is_refused():
    with pytest.raises(InvalidInput, match="coremltools 3.0: it writes no ML Programs"):
        faults.load(coremltools="3.0")
    assert faults.load(coremltools="5.0")


@pytest.mark.parametrize(
    ("makers", "system", "readable"),
    [
        (NEW, "macos14", False),
        (NEW, "macos15.4", True),
        (OLD, "ios15", True),
        (UNKNOWN, "ios15", True),
    ],
)
def test_an_older_system_does_not_read_a_package(makers, system, readable):
    assert makers.readable(system) is readable


@pytest.fixture(scope="module")
def squares():
    @mb.program(input_specs=[mb.TensorSpec((2, 3))], opset_version=ct.target.iOS17)
    def program(x):
        return mb.pow(x=2.0, y=x)

    return ct.convert(program, minimum_deployment_target=ct.target.iOS17)


def test_makers_are_those_that_the_package_names(squares):
    made = makers_of(Package.from_spec(squares.get_spec(), squares.weights_dir))
    assert made == Makers(ct.__version__, "milinternal", 17)
    assert made.text.endswith("from milinternal, for macOS 14, iOS 17 and up")


def test_what_names_no_maker_is_unknown_and_never_clean(squares):
    spec = squares.get_spec()
    spec.description.metadata.ClearField("userDefined")
    spec.specificationVersion = 99
    made = makers_of(Package.from_spec(spec, squares.weights_dir))
    assert made == UNKNOWN
    assert made.text == "maker not named, for unknown systems"
    assert all(fault.applies(made) for fault in faults.load().values())


def test_a_finding_says_whose_fault_it_is(squares):
    [finding] = laws.check(squares, faults.load()).findings
    facts = finding.to_json()
    assert (facts["rule"], facts["of"], facts["gives"]) == ("pow-two", "Core ML", "y * y")
    assert finding.rule.claim.statement in laws.check(squares, faults.load()).text(width=200)
    assert laws.check(squares).count("error") == 0  # the laws alone


def test_a_file_of_rules_may_name_faults(squares, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[pow-two]\nseverity = "note"\n')
    rules = laws.load(own, also=faults.load())
    [finding] = laws.check(squares, rules).findings
    assert (finding.rule.id, finding.severity) == ("pow-two", "note")
