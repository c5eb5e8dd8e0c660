"""The table of kernels: what an op got and why not others, each switched off by its name."""

import json
from pathlib import Path
import subprocess
import sys

from _package import X, const, op, typed, write
import mlprogram
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.kernel_report import plan_report, planned
from mlprogram.kernels import native
from mlprogram.kernels.table import KERNELS
import numpy as np
import pytest

NAMES = list(dict.fromkeys(kernel.name for kernel in KERNELS))
SQUARE = typed("fp32", 3, 3)

#: A gate, a softmax over the first axis, a product with a constant and one that is computed.
OPERATIONS = [
    op("linear", {"a": SQUARE}, x="x", weight=const(np.eye(3, dtype=np.float32))),
    op("silu", {"b": SQUARE}, x="a"),
    op("mul", {"c": SQUARE}, x="b", y="a"),
    op("softmax", {"d": SQUARE}, x="c", axis=const(0)),
    op("transpose", {"e": SQUARE}, x="d", perm=const([1, 0])),
    op("matmul", {"y": SQUARE}, x="e", y="c", transpose_x=const(True)),
]


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "p", OPERATIONS, ["y"], {"x": SQUARE})


def kernels(program: MLProgram) -> list[str]:
    return [step.kernel for step in program.plan.main.steps]


@pytest.mark.skipif(not native.available(), reason=native.status()[1])
class TestWithACompiler:
    def test_what_each_op_got_and_why_not_others(self, path):
        facts = json.loads(json.dumps(planned(path)))
        (steps,) = facts["functions"].values()
        assert [(step["name"], step["ops"], step["kernel"]) for step in steps] == [
            ("a", ["linear"], "product"),
            ("c", ["silu", "mul"], "gated"),
            ("d", ["softmax"], "softmax"),
            ("e", ["transpose"], "transpose"),
            ("y", ["matmul"], ""),
        ]
        assert steps[4]["refused"] == {
            "product": "its weight or bias is computed at run time",
            "small_product": "x is transposed, or broadcast",
        }
        text = plan_report(facts)
        assert "p, main: 6 ops in 5 steps\n" in text
        assert "  1  gated      silu mul\n" in text
        assert "  1  matmul  not small_product:  x is transposed, or broadcast" in text

    @pytest.mark.parametrize("name", ["gated", "product", "transpose"])
    def test_each_is_switched_off_by_its_name(self, path, name):
        x = {"x": np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)}
        whole, less = MLProgram(path), MLProgram(path, without=[name])
        assert name in kernels(whole) and name not in kernels(less)
        assert sum(len(step.operations) for step in less.plan.main.steps) == len(OPERATIONS)
        np.testing.assert_allclose(less.predict(x)["y"], whole.predict(x)["y"], rtol=1e-5)
        refused = {n: why for r in less.plan.selection.refused.values() for n, why in r.items()}
        assert refused[name] == "it is switched off"
        assert kernels(less.function("main")) == kernels(less)


def in_two_parts(**odd: dict) -> list:
    """Attention over two parts of a cache, (3, 3) each; odd: other parameters of an op, by name."""
    wide, last = typed("fp32", 3, 6), const(-1)
    scores = {"x": "x", "transpose_y": const(True)}
    return [
        op("matmul", {"a": SQUARE}, **scores | {"y": "k"} | odd.get("a", {})),
        op("matmul", {"b": SQUARE}, **scores | {"y": "l"} | odd.get("b", {})),
        op("concat", {"c": wide}, **{"values": ["a", "b"], "axis": last} | odd.get("c", {})),
        op("softmax", {"d": wide}, x="c", axis=last),
        op("split", {"e": SQUARE, "f": SQUARE}, x="d", axis=last,
           **{"split_sizes": const([3, 3])} | odd.get("e", {})),
        op("matmul", {"g": SQUARE}, x="e", y="k"),
        op("matmul", {"h": SQUARE}, x="f", y="l"),
        op("add", {"y": SQUARE}, x="g", y="h"),
    ]  # fmt: skip


@pytest.mark.skipif(not native.available(), reason=native.status()[1])
@pytest.mark.parametrize("odd", [
    {"b": {"transpose_x": const(True)}},
    {"a": {"transpose_x": const([False])}, "b": {"transpose_x": const([False])}},
    {"a": {"transpose_x": "k"}},
    {"c": {"interleave": const([False])}},
    {"c": {"axis": const([-1])}},
    {"e": {"split_sizes": const([3.0, 3.0])}},
])  # fmt: skip
def test_parameters_that_attention_does_not_have_leave_it_to_its_ops(tmp_path, odd):
    inputs = dict.fromkeys(["x", "k", "l"], SQUARE)
    sound = MLProgram(write(tmp_path / "sound", in_two_parts(), ["y"], inputs))
    assert kernels(sound) == ["attention"]
    program = MLProgram(write(tmp_path / "odd", in_two_parts(**odd), ["y"], inputs))
    assert "attention" not in kernels(program)


def test_whole_numbers_as_a_factor_leave_layer_norm_to_torch(tmp_path):
    ops = [op("layer_norm", {"y": SQUARE}, x="x", axes=const([1]), beta=const([1, 2, 3]))]
    program = MLProgram(write(tmp_path / "p", ops, ["y"], {"x": SQUARE}))
    assert kernels(program) == [""]


def test_indices_that_are_floats_choose_as_the_plain_op_has_it(tmp_path):
    ops = [op("gather", {"y": typed("fp32", 2, 3)}, x="x", indices="i", axis=const(0))]
    path = write(tmp_path / "p", ops, ["y"], {"x": SQUARE, "i": typed("fp32", 2)})
    given = {"x": np.arange(9, dtype=np.float32).reshape(3, 3), "i": np.array([2, 1], np.float32)}
    program = MLProgram(path)
    np.testing.assert_array_equal(program.predict(given)["y"], given["x"][[2, 1]])


def test_all_of_them_off_is_the_plain_program(path):
    assert set(kernels(MLProgram(path, without=NAMES))) == {""}
    assert set(kernels(MLProgram(path).plain())) == {""}


def test_one_name_is_a_name(path):
    assert kernels(MLProgram(path, without="attention")) == kernels(
        MLProgram(path, without=["attention"])
    )


def test_a_name_that_is_none(path):
    with pytest.raises(InvalidInput, match="no such kernel; there are attention, rms_norm,"):
        MLProgram(path, without=["attentoin"])


def test_the_trace_is_what_runs(path):
    """Values inside a group are not made; the last of them are those of `predict`."""
    program = MLProgram(path)
    given = {"x": np.ones((3, 3), np.float32)}
    traced = dict(program.trace(given))
    assert list(traced) == [name for step in program.plan.main.steps for name in step.results]
    np.testing.assert_array_equal(traced["y"], program.predict(given)["y"])
    assert list(dict(program.plain().trace(given))) == list("abcdey")


def test_running_and_tracing_name_the_same_op(tmp_path):
    """The first op that makes something else than it declares, not the one that cannot take it."""
    steps = [
        op("add", {"a": X}, x="x", y=const(np.ones((4, 2, 3), np.float32))),
        op("relu", {"b": X}, x="a"),
        op("reshape", {"y": X}, x="b", shape=const([2, 3])),
    ]
    program = MLProgram(write(tmp_path / "p", steps, ["y"]))
    given = {"x": np.ones((2, 3))}
    for call in (program.predict, lambda given: list(program.trace(given))):
        with pytest.raises(InvalidPackage) as caught:
            call(given)
        assert str(caught.value).startswith(
            "function 'main', op 'add' ('a', operation 0 of 3) makes"
        )


def test_what_runs_nothing_takes_no_torch(path):
    """To read a package, and all that a command says of one."""
    package = Path(mlprogram.__file__).parent / "package"
    files = [file.relative_to(package).with_suffix("") for file in package.rglob("*.py")]
    names = [".".join(("mlprogram.package", *file.parts)) for file in files]
    names += [f"mlprogram.ane.{name}" for name in ("claims", "cost", "laws", "placement")]
    says = {"inspect": "softmax", "inspect --json": "softmax", "check": "fp32-ops",
            "place": "holds for", "--help": "inspect"}  # fmt: skip
    code = f"""
import sys, mlprogram.__main__ as entry, {", ".join(names)}
for words in {[*says]}:
    sys.argv = ["mlprogram", *words.split(), {str(path)!r}]
    try: entry.main()
    except SystemExit: pass
    print("slow:", sorted({{"torch", "coremltools"}} & {{*sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    *parts, rest = done.stdout.split("slow: []\n")
    assert len(names) > 10 and rest == "", done.stdout + done.stderr
    assert all(said in part for part, said in zip(parts, says.values(), strict=True))
