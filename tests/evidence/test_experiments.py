"""The experiments that would settle conflicting claims: graphs built, executed, and judged here.

On a Mac they ask Core ML; here every graph that is not large runs through the executor, and one
experiment asks a child process with a recorded plan.
"""

import importlib
from pathlib import Path
import re
import sys

from _long import long_but
from mlprogram.ane import claims
from mlprogram.ane.mac import child, residency
from mlprogram.ane.mac.residency import Residency
import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "research" / "experiments"
NAMES = [path.stem for path in sorted(FOLDER.glob("settle_*.py"))]
MAC = Path(__file__).parents[1] / "ane" / "mac" / "_mac.py"

#: Their graphs take a second or more each.
LARGE = {
    "settle_activations_int8", "settle_axis", "settle_calls", "settle_flexible", "settle_prefill",
    "settle_program_bytes", "settle_states", "settle_sums", "settle_weights",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def on_path():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield
    for name in ("_settle", *NAMES):
        sys.modules.pop(name, None)


def claimed(name: str) -> set[str]:
    """The claims that a script says it asks."""
    (first,) = re.findall(r'^"""Claims? (.*?)[:(]', (FOLDER / f"{name}.py").read_text())
    return set(re.split(r", | and ", first.strip()))


def test_every_conflicting_claim_has_an_experiment():
    conflicting = {claim.id for claim in claims.load().values() if claim.grade == "conflicting"}
    asked = set().union(*map(claimed, NAMES))
    assert not conflicting - asked, "write a research/experiments/settle_*.py that asks these"
    assert asked <= {claim.id for claim in claims.load().values()}


def dry(name: str) -> dict:
    module = importlib.import_module(name)
    if not hasattr(module, "CASES"):
        return module.main(dry=True)
    from _settle import run

    return run(name, ", ".join(sorted(claimed(name))), module.CASES, module.decide, dry=True)


@pytest.mark.parametrize("name", long_but(NAMES, *{*NAMES} - LARGE))
def test_its_graphs_are_built_and_executed(name):
    found = dry(name)
    assert found["status"] == "dry run" and found["claim"] and found["verdict"]
    assert all(row["verdict"] == "unmeasured" for row in found.get("rows", []))


def answers(module, verdict: str) -> dict[str, Residency]:
    """An answer for every case, as a Mac would give it."""
    figures = {f"{units}_median": 0.001 for units in ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE")}
    outputs = {"y": np.ones(4, np.float16)}
    return {
        case.name: Residency(verdict, "so", {"ane_cost": 1.0} | figures, outputs=outputs)
        for case in module.CASES
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name != "settle_loaded"])
def test_its_verdict_is_a_sentence_for_each_case(name):
    module = importlib.import_module(name)
    said = module.decide(answers(module, "resident"))
    assert 0 < len(said) < 2000 and "nan" not in said.lower().replace("nan passed on", "")
    failed = {case.name: Residency("failed", "no") for case in module.CASES}
    assert module.decide(failed) != said


def test_weights_of_a_case_are_its_own(tmp_path):
    from _settle import conv, graph, mb
    from mlprogram.package.reader import Package

    path = tmp_path / "x.mlpackage"
    graph(path, [(1, 8, 1, 32)], lambda x: mb.relu(x=conv(conv(conv(x, 8), 8), 8)))
    arrays = [constant.array() for _, constant in Package(path).weights]
    assert len(arrays) == 3 and len({array.tobytes() for array in arrays}) == 3


@pytest.mark.long
def test_one_is_asked_through_a_child_process(monkeypatch):
    from _settle import run

    module = importlib.import_module("settle_calls")
    monkeypatch.setattr(residency, "why_not", lambda: None)
    monkeypatch.setattr(sys.modules["_settle"], "why_not", lambda: None)
    monkeypatch.setattr(child, "PROBE", [sys.executable, str(MAC), "well"])
    found = run("calls", "call-private", module.CASES[:1], lambda results: "asked", dry=False)
    assert found["status"] == "measured" and found["verdict"] == "asked"
    assert [row["verdict"] for row in found["rows"]] == ["resident"]
    assert all(row["CPU_AND_NE_median"] > 0 for row in found.get("rows", []))


def test_the_note_has_every_conflicting_claim_with_its_experiment():
    note = (FOLDER.parent / "conflicting-claims.md").read_text()
    for name in NAMES:
        for claim in claimed(name):
            if claims.find(claim).grade == "conflicting":
                assert f"## {claim}\n" in note, "run `make notes`"
                section = note.split(f"## {claim}\n")[1].split("\n## ")[0]
                assert f"experiments/{name}.py" in section, "run `make notes`"
