"""A device row end to end, with the executor in Core ML's place: `_mac.py` is the child.

What a Mac alone can show is not tested here: what Core ML answers.
"""

import json
from pathlib import Path
import re
import sys

from _command import mlprogram as command
from _command import refused
from _patience import HANGING
from _played_mac import played
from mlprogram import machine
from mlprogram.ane.mac.child import Outcome
from mlprogram.ane.mac.row import read_row, text
from mlprogram.ane.mac.row.form import FAILED, NAMES, OWN, REASONS, UNITS
from mlprogram.ane.mac.row.measure import _chip, _failure, _figures, measure_row
from mlprogram.ane.mac.row.packages import MADE, make
from mlprogram.ane.placement import place
from mlprogram.errors import InvalidPackage
from mlprogram.files import content_hash
import pytest

ROOT = Path(__file__).parents[3]
MAC = Path(__file__).with_name("_mac.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Mac has its own")

ANEMON = """#!/bin/sh
echo "$@" > "{said}"
sleep 0.2
echo '{{"ane_busy_pct": [1.0, 2.0], "programs": [{{"process": "ada"}}]}}'
echo '{{"ane_busy_pct": [97.25, 3.0], "ane_power_w": 2.5, "dram_read_gbs": null, "pid": 7}}'
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, Path]:
    return make(tmp_path_factory.mktemp("row"))


@pytest.fixture
def measured(monkeypatch):
    """`measured(mode, packages, ...)` -> the row of a played M4."""
    monkeypatch.setattr(machine, "macos_version", lambda: (26, 1))
    monkeypatch.setattr(machine, "chip", lambda: "Apple M4")

    def measure(mode: str, packages: dict[str, Path], **options) -> dict:
        how = {"command": [sys.executable, str(MAC), mode], "timeout": HANGING} | options
        row = measure_row(packages, **how)
        text(row)  # it is as a row has to be
        return row

    return measure


def test_the_packages_are_those_of_a_row_and_their_predictions_differ(packages):
    assert (*packages, OWN) == NAMES and [*MADE] == [*packages]
    devices = {name: set(place(path, "m4").devices) for name, path in packages.items()}
    assert devices["convolutions"] == devices["layer-host"] == {"ANE"} != devices["layer-state"]


def test_a_state_that_is_lost_is_told_and_anemon_is_asked(
    packages, measured, tmp_path, monkeypatch
):
    """`slice_update` starts from zeros on the engine alone, as claim state-slice has it."""
    tool, said = tmp_path / "anemon", tmp_path / "said"
    tool.write_text(ANEMON.format(said=said))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    path = packages["state-slice"]
    row = measured("forget", {OWN: path})
    (package,) = row["packages"]
    assert package["sha256"] == content_hash(path / "Data")[:32]
    kept = {units: one["kept"] for units, one in package["units"].items()}
    assert kept == dict.fromkeys(UNITS, True) | {"CPU_AND_NE": False}
    ops = {units: one["ops"] for units, one in package["units"].items()}
    all_on = {"CPU_ONLY": "cpu", "CPU_AND_GPU": "gpu", "CPU_AND_NE": "ane", "ALL": "ane"}
    assert ops == {units: {device: 8} for units, device in all_on.items()}
    assert package["predicted"] == {"chip": "m4", "CPU": 8} and package["as_predicted"] == [0, 7]
    engine = package["units"]["CPU_AND_NE"]
    assert engine["difference"] == pytest.approx(1e-3, rel=0.1)  # `_mac.py` scales by 1.001
    assert engine["median_ms"] == 10 and package["units"]["CPU_ONLY"]["median_ms"] == 20
    assert package["units"]["CPU_ONLY"]["difference"] == 0
    assert row["anemon"] == {"ane_busy_pct": 97.2, "ane_power_w": 2.5} and "unmeasured" not in row
    assert said.read_text() == "--json --interval 1 --count 2\n"


@pytest.mark.long
def test_a_child_that_dies_leaves_the_other_units_measured(packages, measured):
    row = measured("crash", {OWN: packages["state-select"]})
    units = row["packages"][0]["units"]
    assert units["CPU_AND_NE"] == {"failed": "SIGKILL at loading on CPU_AND_NE"}
    others = [one for name, one in units.items() if name != "CPU_AND_NE"]
    assert len(others) == 3 and all(one["kept"] and one["difference"] == 0 for one in others)
    assert row["unmeasured"] == {"anemon": REASONS[2]}


@pytest.mark.long
def test_numbers_that_are_none_are_told(packages, measured):
    units = measured("nan", {OWN: packages["layer-host"]})["packages"][0]["units"]
    assert units["CPU_AND_NE"]["difference"] == "not finite" and units["ALL"]["difference"] == 0


@pytest.mark.parametrize(
    ("script", "options", "failed"),
    [
        ("import os; os.abort()", {}, "SIGABRT at its start"),
        ("raise SystemExit(3)", {}, "exit status 3 at its start"),
        ("import time; time.sleep(60)", {"timeout": 2}, "hung at its start"),
        ("", {"timeout": 0}, "no time left"),
    ],
)
def test_where_nothing_is_compiled_all_units_say_why(packages, measured, script, options, failed):
    child = [sys.executable, "-c", script]
    row = measured("", {OWN: packages["state-select"]}, command=child, **options)
    assert row["packages"][0]["units"] == {each: {"failed": failed} for each in UNITS}


def test_what_a_compiler_fails_at_is_told_without_its_words(packages, measured):
    said = "ANECCompile(/Users/ada/x) FAILED: err=(AdasFailure)"
    child = [sys.executable, "-c", f"import sys; print({said!r}, file=sys.stderr)"]
    (package,) = measured("", {OWN: packages["state-select"]}, command=child)["packages"]
    assert package["compiler"] == "failed to compile for the engine"


def test_each_way_to_end_has_words_that_a_row_may_hold():
    probe = (ROOT / "mlprogram/src/mlprogram/ane/mac/probe.py").read_text()
    body = probe.split("def row(")[1].split("def watch(")[0] + probe.split("def load(")[1]
    steps = re.findall('"((?:loading|the plan|predicting)[^"]*)"', body)
    steps = {"compiling", *(re.sub("{.*?}", "ALL", said) for said in steps)}
    assert len(steps) >= 4, steps
    for step in steps:
        for ended, code in (("exit", 1), ("exit", -9), ("timeout", -9), ("memory", -9)):
            outcome = Outcome(ended, code, [{"step": "x", "next": step}])
            assert re.fullmatch(FAILED, _failure(outcome)), _failure(outcome)


@pytest.mark.parametrize(
    "said", ["", "{", "[]", "7", '{"ane_power_w": "much"}', '{"ane_power_w": [[1], [2, 3]]}',
             '{"ane_power_w": 1e999}', '{"ane_power_w": -1}', "[" * 20_000],
)  # fmt: skip
def test_what_anemon_does_not_say_is_no_figure(said):
    assert _figures(said) == {}


@pytest.mark.parametrize(("named", "chip"), [
    ("Apple M4 Max", "m4-max"), ("Apple M4", "m4"), ("Apple M4 Ultra", "m4"),
    ("Apple M99 Pro", "any"), ("Intel(R) Core(TM) i7", "any"),
])  # fmt: skip
def test_a_placement_is_for_the_chip_itself_or_its_generation(monkeypatch, named, chip):
    monkeypatch.setattr(machine, "chip", lambda: named)
    assert _chip() == chip


def test_what_cannot_be_asked_is_refused(packages, measured, tmp_path):
    with pytest.raises(InvalidPackage, match="no such package"):
        measured("well", {OWN: tmp_path / "none.mlpackage"})


def test_off_a_mac_it_is_one_line(packages):
    if machine.CAN_PREDICT:
        pytest.skip("this machine can tell")
    for words in (["row"], ["residency", packages["state-slice"], "--row"]):
        done = command(*words)
        assert (done.returncode, done.stderr) == (3, "")
        assert re.fullmatch(r"unmeasured: Core ML runs on macOS only; this is \w+\n", done.stdout)
    assert "no such package" in refused("residency", "none.mlpackage", "--row", by=command)


class TestTheCommand:
    """Whole, as on a Mac."""

    @pytest.fixture
    def mac(self, tmp_path, monkeypatch):
        return played(tmp_path, monkeypatch)

    @pytest.mark.long
    def test_a_row_of_ones_own_is_shown_with_a_link(self, mac, packages, tmp_path):
        own = packages["layer-state"]
        done = mac("well", "-m", "mlprogram", "residency", own, "--row")
        assert done.returncode == 0, done.stderr
        written, told = done.stdout.split("\n\n")
        assert "nothing was sent" in told and "\nhttps://" in told
        (tmp_path / "row.json").write_text(written)
        row = read_row(tmp_path / "row.json")
        assert (row["chip"], row["system"]) == ("Apple M4", "macOS 26.1")
        assert own.name not in done.stdout and str(tmp_path) not in done.stdout

    @pytest.mark.long
    def test_where_there_is_no_engine_the_other_units_are_measured(
        self, mac, packages, monkeypatch
    ):
        monkeypatch.setenv("VIRTUAL", "1")
        command = "residency", packages["convolutions"], "--row", "--json"
        done = mac("well", "-m", "mlprogram", *command)
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)
        assert row["unmeasured"] == dict.fromkeys(UNITS[2:], REASONS[0])
        (package,) = row["packages"]
        assert [*package["units"]] == [*UNITS[:2]] and "as_predicted" not in package
