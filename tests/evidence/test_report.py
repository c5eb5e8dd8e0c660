"""`ane-book report`: whole on any machine, nothing personal in it; what is sent is held to it."""

import json
from pathlib import Path
import shutil
import sys

from _command import ane_book as command
from _command import refused
from _nine_ops import nine_ops
from _patience import HANGING
from ane_book.bundle import Bundle
from ane_book.device import cache_folder
from ane_book.errors import InvalidInput
from ane_book.evidence import speed
from ane_book.evidence.report import Settings, gather, page, read_report
from ane_book.evidence.report.private import check, scrub
from ane_book.evidence.report.schema import Report
from mlprogram import machine
from mlprogram.ane.mac import child as mac_child
from mlprogram.ane.mac import residency
import pytest

REPORTS = Path(__file__).parents[2] / "research" / "reports"
SCHEMA = REPORTS / "report.schema.json"


@pytest.fixture(scope="module")
def subjects(tiny_bundle, tmp_path_factory):
    package = tmp_path_factory.mktemp("somebody") / "secret-plan.mlpackage"
    return [tiny_bundle("llama")[1].path, nine_ops(package)]


@pytest.fixture(scope="module")
def written(subjects, tmp_path_factory):
    """What the command measured of one's own alone: what it said, and its folder."""
    out = tmp_path_factory.mktemp("written") / "report"
    options = ["--model", "none", "--no-experiments", "--out", out, "--timeout", HANGING]
    done = command("report", *subjects, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout, out


@pytest.fixture(scope="module")
def report(written):
    return read_report(written[1] / "report.json")


def test_off_a_mac_it_is_whole_but_for_residency(report):
    if machine.neural_engine()[0]:
        pytest.skip("this machine has an engine")
    bundle, package = report.subjects
    status = {name: level.status for name, level in bundle.levels.items()}
    assert (status["L1"], status["L2"]) == ("passed", "unmeasured")
    assert status["L0"] in ("passed", "failed")
    assert "guesses no better than chance" in bundle.levels["L3"].reason, "its weights are random"
    assert package.kind == "package" and package.levels["L2"].reason == machine.neural_engine()[1]
    (speed,) = [speed for speed in bundle.speed if speed.units == "executor"]
    assert speed.failed is None
    assert speed.prefill_tps is not None and speed.decode_tps is not None
    assert speed.cold_s is not None and speed.warm_s is not None
    (function,) = package.functions
    assert function.predicted["verdict"] in ("ANE", "CPU", "depends")


def test_its_page_is_written_and_what_is_sent_is_said(report, written):
    said, out = written
    text = (out / "report.html").read_text()
    assert report.machine.chip in text and "unmeasured" in text and "http" not in text
    assert "<th></th>" not in text  # each column has a name
    assert "names of functions and ops" in said


def test_nothing_personal_is_in_it(report, subjects):
    text = report.text()
    check(text)
    for told in ("secret-plan", str(subjects[0].parent), cache_folder(), Path.home()):
        assert str(told) not in text


@pytest.mark.parametrize(("named", "chip"), [
    ("Apple M4 Max", "m4-max"), ("Apple M4", "m4"), ("Apple M4 Ultra", "m4"),
    ("Apple M99 Pro", "any"), ("AMD EPYC 9B14", "any"),
])  # fmt: skip
def test_a_placement_is_for_the_chip_itself_or_its_generation(monkeypatch, named, chip):
    monkeypatch.setattr(machine, "chip", lambda: named)
    assert sys.modules["ane_book.evidence.report.gather"]._chip() == chip


@pytest.mark.long
def test_speed_is_taken_before_anything_loads_the_same_programs(subjects, tmp_path, monkeypatch):
    """A first load after residency's would be none."""
    gathering, done = sys.modules["ane_book.evidence.report.gather"], []

    def telling(name):
        real = getattr(gathering, name)

        def told(*arguments, **options):
            done.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(gathering, name, told)

    for module in (residency, gathering):
        monkeypatch.setattr(module, "why_not", lambda: None)
    for module in (mac_child, speed):
        monkeypatch.setattr(module, "PROBE", [sys.executable, "-c", ""])
    for name in ("measure_speed", "measure_each", "check_parity"):
        telling(name)
    engine, own = (True, "recorded"), tmp_path / "bundle"
    monkeypatch.setattr(machine, "neural_engine", lambda: engine)
    shutil.copytree(subjects[0], own)  # which keeps what was found
    gather([own], Settings(timeout=HANGING))
    assert done == ["measure_speed", "measure_each", "check_parity"]


@pytest.mark.long
def test_first_loads_of_a_report_use_nothing_that_was_compiled_before(
    subjects, tmp_path, monkeypatch
):
    """The executor is in Core ML's place, in a child that writes down what it compiles."""
    log = tmp_path / "log"
    child = (
        "from mlprogram import coreml, machine; machine.CAN_PREDICT = True\n"
        "import json, sys\n"
        "from ane_book.evidence import speed\n"
        "real = coreml.Proxy.compileModel\n"
        f"def told(path): open({str(log)!r}, 'a').write(path + '\\n'); return real(path)\n"
        "coreml.Proxy.compileModel = staticmethod(told)\n"
        "with coreml.enable(): speed.tell_speed(json.load(open(sys.argv[1])))"
    )
    monkeypatch.setattr(speed, "PROBE", [sys.executable, "-c", child])
    bundle = Bundle.open(subjects[0])
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = speed.measure_speed(bundle, "CPU_AND_NE", folder, 300.0)
        assert "failed" not in found and {"cold_s", "warm_s"} <= found.keys()
        compiled = log.read_text().split()
        assert len(compiled) == number * len(bundle.manifest.packages), "once for both loads"


@pytest.mark.parametrize(
    "text, kept",
    [
        ("/Users/ada/models/x.mlpackage: no", "(a path): no"),
        ("cannot open '/tmp/abc/y'", "cannot open '(a path)'"),
        (r"C:\Users\ada\x", "(a path)"),
        ("https://github.com/home/x says", "https://github.com/home/x says"),
        ("1/2 of a/b", "1/2 of a/b"),
    ],
)
def test_paths_are_taken_out(text, kept):
    assert scrub(text) == kept


def test_names_of_this_machine_are_taken_out(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "ada.lovelace")
    monkeypatch.setattr("socket.gethostname", lambda: "adas-mac.local")
    assert scrub("ada.lovelace on adas-mac") == "(a name) on (a name)"
    with pytest.raises(InvalidInput, match="not written"):
        check('{"chip": "the one of ada.lovelace"}')


def broken(report: Report, tmp_path: Path, change) -> Path:
    fields = json.loads(report.text())
    change(fields)
    file = tmp_path / "sent.json"
    file.write_text(json.dumps(fields))
    return file


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda f: f.update(format="ane-book report 2"), "of a newer ane-book"),
        (lambda f: f.update(format="something"), "format 'something' is not"),
        (lambda f: f.pop("format"), "not a report"),
        (lambda f: f["machine"].pop("chip"), "machine.chip: Field required"),
        (lambda f: f.update(host="adas-mac"), "host: Extra inputs"),
        (lambda f: f["subjects"][0].update(sha256="x"), "subjects.0.sha256"),
        (lambda f: f["subjects"][0]["levels"]["L1"].update(status="fine"), "levels.L1.status"),
        (
            lambda f: f["subjects"][0]["levels"].update(L2=f["subjects"][0]["levels"]["L1"]),
            "L2 was measured on a machine without a Neural Engine",
        ),
    ],
)
def test_a_report_that_breaks_the_schema_is_told(report, tmp_path, change, said):
    with pytest.raises(InvalidInput, match=said):
        read_report(broken(report, tmp_path, change))


def test_what_is_no_report_is_told(tmp_path):
    file = tmp_path / "x.json"
    for content in ("", "[]", "{", "[" * 100_000):
        file.write_text(content)
        with pytest.raises(InvalidInput, match="not a report"):
            read_report(file)
    with pytest.raises(InvalidInput, match="No such file"):
        read_report(tmp_path / "none.json")


def test_a_page_shows_text_as_text(report, tmp_path):
    def change(fields):
        fields["machine"]["chip"] = "<script>alert(1)</script>"

    text = page([read_report(broken(report, tmp_path, change))])
    assert "<script>" not in text and "&lt;script&gt;" in text


def contributed() -> list[Path]:
    return [path for path in sorted(REPORTS.glob("*.json")) if path != SCHEMA]


def test_reports_that_were_sent_are_sound_and_tell_nothing_personal():
    assert contributed(), "research/reports/ holds at least the report of a machine of ours"
    for path in contributed():
        text = read_report(path).text()
        assert scrub(text) == text, path


def test_the_schema_on_disk_is_the_schema():
    assert json.loads(SCHEMA.read_text()) == Report.model_json_schema()


def test_the_command_refuses_what_it_cannot_measure_before_it_converts(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "notes.txt").write_text("no package")
    for name in ("nothing", "notes.txt"):
        assert name in refused("report", tmp_path / name, "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_is_told_before_measuring(tmp_path):
    (tmp_path / "taken").write_text("")
    done = command("report", "--model", "none", "--no-experiments", "--out", tmp_path / "taken")
    assert done.returncode == 2 and done.stderr == f"error: {tmp_path / 'taken'}: File exists\n"
