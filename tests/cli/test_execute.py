"""`mlprogram run` and `ane-book diff`: what a package computes, and where two part."""

import json
from pathlib import Path

from _command import ane_book, mlprogram, refused
from ane_book.errors import InvalidInput
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol, types
from mlprogram import MLProgram
from mlprogram.execute import execute, execution_report
import numpy as np
import pytest


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, Path]:
    """Two packages of x -> y, one ten percent off the other, and one that overflows."""
    folder, made = tmp_path_factory.mktemp("packages"), {}
    for name, scale in {"right": 2.0, "wrong": 2.2, "large": 60_000.0}.items():

        @mb.program(
            input_specs=[mb.TensorSpec((4,), dtype=types.fp16)], opset_version=ct.target.iOS18
        )
        def program(x):
            factor = np.float16(scale)  # noqa: B023  (the program is built at once)
            scaled = mb.mul(x=mb.abs(x=x, name="size"), y=factor, name="scaled")
            return mb.relu(x=scaled, name="y")

        options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
        made[name] = folder / f"{name}.mlpackage"
        ct.convert(program, **options).save(str(made[name]))
    return made


class TestExecute:
    def test_a_package_in_words(self, packages, tmp_path):
        np.savez(tmp_path / "in.npz", x=np.array([1, -2, 3, 4]))
        out = tmp_path / "out.npz"
        options = ["--inputs", tmp_path / "in.npz", "--out", out]
        done = mlprogram("run", packages["large"], *options)
        assert done.returncode == 0, done.stderr
        assert f"run of main, computed as declared, on {tmp_path / 'in.npz'}\n" in done.stdout
        assert "output  y  float16(4)  min 6e+04  max inf  mean inf" in done.stdout
        overflow = "mul 'scaled': 240,000 at most, beyond fp16's 65,504 (3 of 4 elements)"
        assert f"numerics   {overflow}\n" in done.stdout
        assert np.load(out)["y"].tolist() == [60_000, np.inf, np.inf, np.inf]

    def test_facts(self, packages):
        facts = execute(packages["right"], precision="fp32", seed=3)
        program = MLProgram(packages["right"], precision="fp32")
        y = program.predict(program.random_inputs(3))["y"]
        assert facts["outputs"]["y"]["max"] == pytest.approx(float(y.max()))
        assert facts["seconds"].keys() == {"load", "first", "next"}
        assert all(isinstance(took, float) for took in facts["seconds"].values())
        assert facts["memory"]["values"] == program.memory.values == 3 * 16
        assert facts["findings"] == []
        assert "no overflow, NaN or lost bits" in execution_report(facts)

    def test_facts_are_plain_json(self, packages, tmp_path):
        np.savez(tmp_path / "in.npz", x=np.array([1, 2, 3, 4]))
        facts = execute(packages["large"], inputs=tmp_path / "in.npz")
        assert json.loads(json.dumps(facts, allow_nan=False)) == facts
        assert facts["outputs"]["y"]["max"] == "inf"
        assert [finding["op"] for finding in facts["findings"]] == ["mul"]

    def test_a_function_of_a_package_with_state(self, tiny_bundle):
        package = next(tiny_bundle("llama", kv="state")[1].path.glob("layers*"))
        facts = execute(package, "prefill")
        assert facts["function"] == "prefill" and facts["memory"]["states"] > 0

    def test_a_classifier(self, tmp_path):
        @mb.program(input_specs=[mb.TensorSpec((1, 3))])
        def program(x):
            return mb.softmax(x=x, axis=-1, name="p")

        labels = ct.ClassifierConfig(["cat", "dog", "ox"])
        options = {"inputs": [ct.TensorType("x", (1, 3))], "skip_model_load": True}
        package, out = tmp_path / "p.mlpackage", tmp_path / "out.npz"
        ct.convert(program, classifier_config=labels, **options).save(str(package))
        np.savez(tmp_path / "in.npz", x=np.array([[0, 100, 1]]))
        text = execution_report(execute(package, inputs=tmp_path / "in.npz", out=out))
        assert "'dog'" in text and "3 classes" in text and "dog 1, " in text
        np.testing.assert_array_equal(np.load(out)["classLabel_probs"], [0, 1, 0])

    def test_shapes_that_only_the_run_tells(self, tmp_path):
        shape = ct.Shape((ct.RangeDim(1, 100, default=8),))

        @mb.program(input_specs=[mb.TensorSpec((get_new_symbol(),))])
        def program(x):
            return mb.sin(x=x, name="y")

        package, options = tmp_path / "p.mlpackage", {"skip_model_load": True}
        options["compute_precision"] = ct.precision.FLOAT32
        ct.convert(program, inputs=[ct.TensorType("x", shape)], **options).save(str(package))
        np.savez(tmp_path / "in.npz", x=np.ones(50))
        assert execute(package)["memory"]["values"] == 2 * 4 * 8
        assert execute(package, inputs=tmp_path / "in.npz")["memory"]["values"] == 2 * 4 * 50

    def test_what_cannot_run(self, packages, tmp_path):
        np.savez(tmp_path / "name.npz", z=np.ones(4))
        np.savez(tmp_path / "shape.npz", x=np.ones(5))
        package = packages["right"]
        message = refused("run", package, "--inputs", tmp_path / "name.npz", by=mlprogram)
        assert "missing: x; unknown: z" in message
        with pytest.raises(InvalidInput, match=r"must be fp16\(4\), not"):
            execute(package, inputs=tmp_path / "shape.npz")


def test_diff_says_where_two_packages_part(packages, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.array([1, -2, 3, 4]))
    pair = packages["wrong"], packages["right"]
    done = ane_book("diff", *pair, "--inputs", tmp_path / "in.npz")
    assert done.returncode == 1 and done.stderr == ""
    head, counts, first, table, verdict = done.stdout.split("\n\n")
    assert str(packages["wrong"]) in head and counts.startswith("3 of 3 values compared")
    assert first.startswith("first apart: mul 'scaled' (4,)\n  error     9.96 %\n")
    assert "  reads     'size', exact" in first
    assert table.splitlines()[1].startswith("y ") and verdict == "outputs apart: y\n"
