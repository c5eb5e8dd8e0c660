"""The record of the Mac's path (research/measurements/mac_path.py), which `reports.md` shows."""

import ast
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "research" / "measurements" / "mac_path.json").read_text("utf-8"))
COMMANDS = ("sysctl", "ps", "sw_vers", "log", "powermetrics")  # of macOS


def asked_of_a_mac(source: str) -> set[str]:
    """Names imported of coremltools but its converters, and commands that are lists of text."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coremltools"):
            if not node.module.startswith("coremltools.converters"):
                found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.List) and node.elts:
            first = node.elts[0]
            if isinstance(first, ast.Constant) and first.value in COMMANDS:
                found.add(first.value)
    return found


def test_the_page_lists_each_call_that_only_a_mac_answers():
    told = " ".join(one["call"] for one in RECORD["played"])
    asked = set()
    for name in RECORD["modules"]:
        asked |= asked_of_a_mac((ROOT / name).read_text("utf-8"))
    assert {"CompiledMLModel", "MLComputePlan", "compile_model", "sysctl", "ps"} <= asked
    assert [name for name in sorted(asked - {"Model_pb2"}) if name not in told] == []
    for key in ("sysctl", "platform.mac_ver"):
        assert key in told


def test_its_files_are_all_of_the_macs_half():
    """A new file there is measured too, and the record does not know one that is gone."""
    folders = ("mlprogram/src/mlprogram/ane/mac", "mlprogram/src/mlprogram/ane/mac/row")
    there = {f"{folder}/{path.name}" for folder in folders for path in (ROOT / folder).glob("*.py")}
    assert there - {f"{folders[0]}/__init__.py"} <= RECORD["modules"].keys()
    assert all((ROOT / name).is_file() for name in RECORD["modules"])
    assert all((ROOT / name).is_file() for name in RECORD["tests"])
