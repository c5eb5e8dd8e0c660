"""How `field.py` judges a graph: each outcome, on graphs of a node or two."""

import json
from pathlib import Path

from _graphs import Maker
import _verdict
from _verdict import judge
import field
import numpy as np
import pytest


def graph(path: Path, *chain: tuple) -> Path:
    """Operators on x, each with its other operands."""
    make = Maker()
    y = make.input("x", [3, 3])
    for op, *operands in chain:
        y = make(op, y, *map(make.constant, operands))
    return make.save(path, [y])


X = {"x": np.float32([[1, -2, 3], [4, 5, -6], [0, 2, 2]])}


def test_each_outcome(tmp_path, monkeypatch):
    right = graph(tmp_path / "right.onnx", ("Relu",), ("Sqrt",))
    found = judge(right, X)
    assert found["outcome"] == "right" and found["fp32"]["error"] < 1e-6
    assert 0 < found["fp16"]["error"] < 1e-3
    large = graph(tmp_path / "large.onnx", ("Mul", np.float32(3e4)), ("Mul", np.float32(1e-4)))
    assert judge(large, X)["outcome"] == "fp16"
    found = judge(graph(tmp_path / "det.onnx", ("Det",)), X)
    assert found["outcome"] == "refused" and found["why"].startswith("UnsupportedOp: the node Det")
    convert = _verdict.converted
    monkeypatch.setattr(_verdict, "converted", lambda path, *rest: convert(large, *rest))
    found = judge(right, X)
    assert found["outcome"] == "wrong" and found["why"].startswith("fp32")
    monkeypatch.setattr(_verdict, "converted", lambda *_: {}["no such key"])
    assert judge(right, X)["outcome"] == "crash"


@pytest.mark.long
def test_an_architecture_is_exported_and_judged(tmp_path):
    assert field.export("resnet", "older", str(tmp_path))["outcome"] == "exported"
    assert field.judge_file(str(tmp_path / "resnet-older.onnx"))["outcome"] == "right"
    made, failed = field.exported(tmp_path, [], set())
    assert made == [] and failed == {}


def test_readme_says_what_the_record_does():
    found = json.loads(field.RESULT.read_text())
    assert field.headline(found) in (field.RESULT.parents[2] / "README.md").read_text()
    for part in (found["exported"], found["others"]):
        assert sum(part["outcomes"].values()) == part["graphs"]
        assert not {"wrong", "crash"} & part["outcomes"].keys()
