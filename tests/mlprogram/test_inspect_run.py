"""`run` and `diff` on packages that are odd, but run."""

import os

from _package import ADD, X, block, const, op, run, typed, write
from mlprogram import MLProgram
from mlprogram.compare.packages import compare_packages
from mlprogram.errors import InvalidInput
from mlprogram.execute import execute, execution_report
from mlprogram.package.description import load_inputs
import numpy as np
import pytest

SCALAR, COUNT, ROWS = typed("fp32"), typed("int32"), typed("fp32", None, 3)

RANK_0 = [
    op("reduce_sum", {"s": SCALAR}, x="x", axes=const([0, 1]), keep_dims=const(False)),
    op("add", {"y": X}, x="x", y="s"),
]
LOOP = [
    op(
        "while_loop",
        {"n": COUNT, "y": ROWS},
        [
            block(
                [op("less", {"more": typed("bool")}, x="n0", y=const(3))],
                ["more"],
                {"n0": COUNT, "v0": ROWS},
            ),
            block(
                [
                    op("add", {"n2": COUNT}, x="n1", y=const(1)),
                    op("add", {"v2": ROWS}, x="v1", y="v1"),
                ],
                ["n2", "v2"],
                {"n1": COUNT, "v1": ROWS},
            ),
        ],
        loop_vars=[const(0), "x"],
    )
]
HELD = op("const", {"k": X}, val=const(np.ones((2, 3), np.float32)))

ODD = {
    "a value of rank 0": {"operations": RANK_0},
    "a loop over a flexible shape": {"operations": LOOP, "inputs": {"x": ROWS}},
    "an input as an output": {"operations": [ADD], "outputs": ["y", "x"]},
    "a constant as an output": {"operations": [HELD, ADD], "outputs": ["k", "y"]},
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_packages(kind, tmp_path):
    path = write(tmp_path / "p", **ODD[kind])
    facts = execute(path)
    assert facts["outputs"].keys() == {*ODD[kind].get("outputs", ["y"])}
    assert f"run of main, computed as declared, on {facts['on']}" in execution_report(facts)
    text, equal, _ = compare_packages(path)
    assert equal and "outputs equal within the tolerance" in text


def test_an_input_that_is_an_output_is_compared_as_well(tmp_path):
    same = write(tmp_path / "a", [ADD], outputs=["y", "x"])
    doubled = [ADD, op("add", {"z": X}, x="x", y="x")]
    other = write(tmp_path / "b", doubled, outputs=["y", "z"])
    text, equal, _ = compare_packages(same, other)
    assert equal and "B has no output x" in text
    order, equal, _ = compare_packages(
        write(tmp_path / "c", [ADD], outputs=["x"]), write(tmp_path / "d", [ADD])
    )
    assert not equal and "outputs by their order: x and y" in order


def test_of_packages_that_take_other_inputs_both_are_named(tmp_path):
    other = write(tmp_path / "b", [op("relu", {"y": X}, x="z")], inputs={"z": X})
    a, b = write(tmp_path / "a", [ADD]), other
    with pytest.raises(InvalidInput) as raised:
        compare_packages(a, b)
    said = str(raised.value)
    assert said.startswith(f"{a}, main, takes x; {b}, main, takes z: packages are compared on the")


def test_a_program_is_printed_with_its_name_and_types(tmp_path):
    program = MLProgram(write(tmp_path / "p", [ADD]))
    assert str(program) == repr(program) == "\n".join([
        f"MLProgram {program.package.path.name}, main, fp16",
        "  inputs: x fp32(2, 3)",
        "  outputs: y fp32(2, 3)",
    ])  # fmt: skip


def test_any_name_of_an_output_is_saved(tmp_path):
    names = ["file", "args", "kwds", "self", "a/b", "../up"]
    operations = [op("mul", {n: X}, x="x", y=const(float(i))) for i, n in enumerate(names)]
    path, out = write(tmp_path / "p", operations, outputs=names), tmp_path / "out.npz"
    np.savez(tmp_path / "in.npz", x=np.ones((2, 3), np.float32))
    execute(path, inputs=tmp_path / "in.npz", out=out)
    with np.load(out) as saved:
        assert {name: saved[name].max() for name in names} == {n: i for i, n in enumerate(names)}
    assert sorted(tmp_path.glob("*out*")) == [out] and run(path)["args"].max() == 1


def test_a_place_that_cannot_hold_the_outputs(tmp_path):
    path = write(tmp_path / "p", [ADD])
    (tmp_path / "folder").mkdir()
    for out in ("folder", "none/out.npz", "x" * 300):
        with pytest.raises(InvalidInput, match="cannot be written"):
            execute(path, out=tmp_path / out)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "p"]


def test_a_file_that_holds_no_named_arrays(tmp_path):
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut")
    (tmp_path / "empty.npz").touch()
    np.savez(tmp_path / "object.npz", x=np.array([{}], object))
    os.mkfifo(tmp_path / "pipe.npz")
    np.savez_compressed(tmp_path / "bits.npz", x=np.arange(2000.0))
    packed = bytearray((tmp_path / "bits.npz").read_bytes())
    packed[200] ^= 255
    (tmp_path / "bits.npz").write_bytes(packed)
    for name in ("one", "cut", "empty", "object", "none", "pipe", "bits"):
        name += ".npy" if name == "one" else ".npz"
        with pytest.raises(InvalidInput, match=rf"{name}: not a \.npz file"):
            load_inputs(tmp_path / name)
