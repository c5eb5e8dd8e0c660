"""The faults of `make mutations` fit the library as it is: a change carries them along."""

import ast
from pathlib import Path
import tomllib

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = tomllib.loads((ROOT / "tests" / "mutations" / "faults.toml").read_text("utf-8"))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_can_be_put_in(name):
    fault = FAULTS[name]
    source = (ROOT / fault["file"]).read_text("utf-8")
    assert source.count(fault["before"]) == 1, f"{fault['file']}: carry the fault along"
    faulty = source.replace(fault["before"], fault["after"])
    assert faulty != source
    if fault["file"].endswith(".py"):
        ast.parse(faulty)


def test_faults_say_what_they_are():
    fields = {"file", "before", "after", "goes_wrong", "from"}
    assert len(FAULTS) == 40
    for name, fault in FAULTS.items():
        assert fault.keys() == fields, name
        assert fault["from"] in ("review", "issue 22", "new"), name
        assert fault["goes_wrong"].endswith("."), name
    assert sum(fault["from"] != "new" for fault in FAULTS.values()) >= 12
