"""How `field.py` judges a graph: each outcome, on graphs of a node or two."""

import json
import os
from pathlib import Path

from _graphs import Maker, helper, onnx
import _verdict
from _verdict import error, judge, some_inputs
import field
import numpy as np
import pytest


def graph(path: Path, *chain: tuple, shape=(2, 3)) -> Path:
    """Operators on x, each with its other operands."""
    make = Maker()
    y = make.input("x", list(shape))
    for op, *operands in chain:
        y = make(op, y, *map(make.constant, operands))
    return make.save(path, [y])


X = {"x": np.float32([[1, -2, 3], [4, 5, -6]])}


def test_a_graph_that_is_right(tmp_path):
    found = judge(graph(tmp_path / "a.onnx", ("Relu",), ("Sqrt",)), X)
    assert found["outcome"] == "right" and found["fp32"]["error"] < 1e-6
    assert 0 < found["fp16"]["error"] < 1e-3


def test_other_numbers_are_wrong(tmp_path, monkeypatch):
    other, convert = graph(tmp_path / "other.onnx", ("Sin",)), _verdict.converted
    monkeypatch.setattr(_verdict, "converted", lambda path, *rest: convert(other, *rest))
    found = judge(graph(tmp_path / "a.onnx", ("Cos",)), X)
    assert found["outcome"] == "wrong" and found["why"].startswith("fp32")


def test_what_half_precision_cannot_hold_is_told_from_what_is_wrong(tmp_path, monkeypatch):
    chain = [("Mul", np.float32(3e4)), ("Mul", np.float32(1e-4))]
    path = graph(tmp_path / "a.onnx", *chain)
    assert judge(path, X)["outcome"] == "fp16"
    monkeypatch.setattr(_verdict, "rounded", lambda path, seed: path.read_bytes())
    assert judge(path, X)["outcome"] == "wrong"


def test_a_mask_of_the_least_number_is_not_taken_for_what_half_precision_cannot_hold(tmp_path):
    """Constants are kept finite: that is the converter's to see to, too."""
    path = graph(tmp_path / "a.onnx", ("Mul", np.finfo(np.float32).min), ("Softmax",))
    values = _verdict.oracle(_verdict.rounded(path), {"x": np.float32([[0, 1, 0]] * 2)})
    assert np.isfinite(values).all()


def test_what_is_refused_what_crashes_and_what_has_no_oracle(tmp_path, monkeypatch):
    path = graph(tmp_path / "a.onnx", ("Det",), shape=(3, 3))
    found = judge(path, {"x": np.eye(3, dtype=np.float32)})
    assert found["outcome"] == "refused" and found["why"].startswith("UnsupportedOp: the node Det")
    monkeypatch.setattr(_verdict, "converted", lambda *_: {}["no such key"])
    assert judge(path, {"x": np.eye(3, dtype=np.float32)})["outcome"] == "crash"
    model = onnx.load(path)
    model.graph.node[0].domain = "others"
    model.opset_import.append(helper.make_opsetid("others", 1))
    onnx.save(model, path)
    assert judge(path, X)["outcome"] == "no oracle"


@pytest.mark.parametrize(
    ("found", "wanted", "by"),
    [
        ([np.zeros((2, 1))], [np.zeros((1, 2))], np.inf),
        ([np.array([1.0, np.nan])], [np.array([1.0, 2.0])], np.inf),
        ([np.array([1.0, np.nan])], [np.array([2.0, np.nan])], 0.5),
        ([np.array([3])], [np.array(4)], 0.25),
        ([np.zeros(3)], [np.zeros(3)], 0),
    ],
)
def test_an_error_is_by_the_range_of_an_output(found, wanted, by):
    assert error(found, wanted) == by


def test_inputs_are_of_sizes_that_onnxruntime_takes(tmp_path):
    make = Maker()
    x, ids = make.input("x", ["N", 3, "H", "W"]), make.input("ids", ["N"], np.int64)
    y = make("Conv", x, make.weight(4, 3, 31, 31))
    path = make.save(tmp_path / "a.onnx", [make("Add", y, make("Cast", ids, to=1))])
    given = some_inputs(path)
    assert given["x"].shape == (1, 3, 224, 224) and given["ids"].shape == (1,)


def _may_die(graph: str) -> dict:
    if graph == "dies":
        os._exit(1)
    return {"graph": graph, "outcome": "right", "why": ""}


def test_a_run_goes_on_after_a_process_that_dies_and_keeps_what_is_done(tmp_path):
    todo = [(name, _may_die, name) for name in ("a", "dies", "b")]
    records = field.run(todo, tmp_path / "done.jsonl", {"new"})
    assert [r["outcome"] for r in records] == ["right", "no end", "right"]
    assert len((tmp_path / "done.jsonl").read_text().splitlines()) == 3
    again = field.run(todo[:1], tmp_path / "done.jsonl", {"new"})
    assert again == records[:1] and len((tmp_path / "done.jsonl").read_text().splitlines()) == 3
    assert field.summary(records)["outcomes"] == {"no end": 1, "right": 2}


@pytest.mark.long
def test_an_architecture_is_exported_and_verdictd(tmp_path):
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
