"""What is refused: one error that names file, node and inputs, and nothing is written."""

import os
import shutil

from _command import end, mlprogram
from _graphs import Maker, helper, numpy_helper, onnx
from mlprogram.errors import (
    InvalidInput,
    InvalidWeights,
    MLProgramError,
    UnsupportedModel,
    UnsupportedOp,
)
from mlprogram.files import content_hash
from mlprogram.onnx.graph import convert_graph
import numpy as np
import pytest


def refused(path, error: type[MLProgramError], said: str, **how) -> str:
    """Convert, and find the one error, with no file left beside the graph's."""
    before = set(path.parent.iterdir())
    with pytest.raises(error, match=said) as found:
        convert_graph(path, path.parent / "made.mlpackage", **how)
    assert set(path.parent.iterdir()) == before
    return str(found.value)


def one_node(path, node, shape=(2, 3), opset: int = 17, dtype=np.float32, constants=()):
    """A graph of one node that takes `x`."""
    make = Maker()
    make.input("x", shape, dtype)
    make.nodes.append(node)
    make.constants.extend(constants)
    return make.save(path / "model.onnx", [node.output[0]], opset)


def node(op: str, *inputs: str, **attributes):
    return helper.make_node(op, ["x", *inputs], ["y"], **attributes)


def branches():
    truth = helper.make_empty_tensor_value_info("z")
    branch = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "b", [], [truth])
    return {"then_branch": branch, "else_branch": branch}


LARGE = numpy_helper.from_array(np.int64([2**40]), "large")
POOL = helper.make_node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2])

#: A node, what else the graph has, the error, and what is said.
REFUSED = {
    "unknown": (
        node("Reluu", name="act"), {}, UnsupportedOp, "'act' .Reluu. of x float32 .2, 3.*Relu",
    ),
    "of others": (
        node("MatMulNBits", domain="com.microsoft"), {},
        UnsupportedOp, "com.microsoft.MatMulNBits that makes 'y'",
    ),
    "of ONNX Runtime's": (
        node("FusedConv", domain="com.microsoft"), {},
        UnsupportedOp, "optimisers and quantisers.*framework exported.*ORT_ENABLE_BASIC",
    ),
    "no body": (
        helper.make_node("Loop", ["", "", "x"], ["y"]), {}, UnsupportedOp, "Loop without its body",
    ),
    "no form in MIL": (node("Det"), {"shape": (3, 3)}, UnsupportedOp, "Det"),
    "no second output": (POOL, {"shape": (1, 1, 4, 4)}, UnsupportedOp, "MaxPool.*indices"),
    "attribute": (node("Relu", colour="red"), {}, UnsupportedOp, "Relu.*attribute 'colour'"),
    "control flow": (
        helper.make_node("If", ["x"], ["y"], **branches()), {"shape": (1,), "dtype": bool},
        UnsupportedOp, "If.*control flow",
    ),
    "nothing made": (
        helper.make_node("Relu", ["x"], [""]), {}, UnsupportedModel, "nothing gives output ''",
    ),
    "future": (node("Relu"), {"opset": 999}, UnsupportedModel, "opset 999"),
    "of no opset": (
        node("ImageScaler", scale=2.0), {"opset": 6},
        UnsupportedModel, "opset 6.*ONNX does not define ImageScaler",
    ),
    "not carried over": (
        node("Pad", paddings=[0] * 4), {"opset": 1}, UnsupportedModel, "Pad of opset 1",
    ),
    "of a later opset": (
        node("ThresholdedRelu"), {"opset": 6}, UnsupportedModel, "opset 6.*has no ThresholdedRelu",
    ),
    "complex": (node("Identity"), {"dtype": np.complex64}, UnsupportedModel, "input 'x'"),
    "beyond int32": (
        node("Add", "large"), {"shape": (1,), "dtype": np.int64, "constants": [LARGE]},
        UnsupportedOp, "Add.*beyond int32.*1,099,511,627,776",
    ),
    "a ghost": (node("Add", "ghost"), {}, InvalidWeights, "Add.*'ghost'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_that_will_not_do(tmp_path, name):
    """By its name and inputs, with what is near, and in no words of onnx's own code."""
    made, how, error, said = REFUSED[name]
    text = refused(one_node(tmp_path, made, **how), error, said)
    assert "%" not in text and ".h:" not in text and "Assertion" not in text


def test_what_shapes_the_graph_has_to_be_known(tmp_path):
    make = Maker()
    make.input("x", [2, 3])
    make.input("shape", [2], np.int64)
    path = make.save(tmp_path / "model.onnx", [make("Reshape", "x", "shape")])
    refused(path, UnsupportedOp, "Reshape.*'shape'.*known only when the program runs")
    convert_graph(path, tmp_path / "y.mlpackage", constants={"shape": np.int64([3, 2])})


def test_sizes_that_are_open_are_asked_for_by_name(tmp_path):
    path = one_node(tmp_path, node("Relu"), ["batch", 3])
    refused(path, InvalidInput, r"'x'.*\(batch, 3\).*--shape x=1,3")
    refused(path, InvalidInput, r"^(?=.*\(batch, 3\)).*\(1, 4\)", shapes={"x": (1, 4)})
    refused(path, InvalidInput, "no input 'z'.*there are: x", shapes={"z": (1, 3)})
    refused(path, UnsupportedModel, r"\(0, 3\)", shapes={"x": (0, 3)})


def test_a_file_that_is_none_of_onnx(tmp_path):
    path = tmp_path / "model.onnx"
    refused(path, InvalidWeights, "model.onnx")
    for content in (b"", b"this is no protobuf", b"\x08\x08"):
        path.write_bytes(content)
        refused(path, InvalidWeights, "model.onnx")


def test_a_file_that_is_cut_short(tmp_path):
    """At any byte: one error of ours, or, cut between fields, a smaller model."""
    make = Maker()
    make.input("x", [2, 3])
    whole = make.save(tmp_path / "whole.onnx", [make("Gemm", "x", make.weight(3, 2))]).read_bytes()
    for length in range(0, len(whole), 7):
        path = tmp_path / "model.onnx"
        path.write_bytes(whole[:length])
        with pytest.raises(MLProgramError, match="model.onnx"):
            convert_graph(path, tmp_path / "made.mlpackage")
    assert not (tmp_path / "made.mlpackage").exists()


def test_a_protobuf_over_two_gigabytes(tmp_path):
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # a hole: it takes no room
    refused(path, InvalidWeights, "2,147,483,648 bytes.*external data")


#: Where a constant says that its data are, and what is said of that.
PLACES = [
    ({"location": "../secret"}, "outside"),
    ({"location": "/etc/passwd"}, "outside"),
    ({"location": "link"}, "outside"),
    ({"location": ""}, "outside"),
    ({"location": "a\0b"}, "its file"),
    ({"location": "gone"}, "missing"),
    ({"location": "pipe"}, "not a file"),
    ({"location": "short"}, "cut short"),
    ({"location": "whole", "offset": "-8"}, "cut short"),
    ({"location": "whole", "offset": "9" * 30}, "cut short"),
    ({"location": "whole", "length": "1"}, "cut short"),
    ({"location": "whole", "offset": "many"}, "no number"),
]


@pytest.mark.parametrize(("place", "said"), PLACES)
def test_constants_that_are_not_beside_the_graph_or_not_whole(tmp_path, place, said):
    folder = tmp_path / "model"
    folder.mkdir()
    for file, size in (("secret", 64), ("model/short", 20), ("model/whole", 24)):
        (tmp_path / file).write_bytes(bytes(size))
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[2, 3], data_location=1)
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    refused(one_node(folder, node("Add", "w"), constants=[tensor]), InvalidWeights, said)


def test_a_constant_that_asks_for_more_memory_than_there_is(tmp_path):
    make = Maker()
    big = make("ConstantOfShape", make.constant(np.int64([2**20, 2**20])))
    path = make.save(tmp_path / "model.onnx", [make("Add", make.input("x", [1]), big)])
    refused(path, UnsupportedOp, r"ConstantOfShape.*1.1e\+12 numbers")


def test_a_package_that_is_there_stays(tmp_path):
    path = one_node(tmp_path, node("Relu"))
    out = convert_graph(path, tmp_path / "made.mlpackage")
    refused(path, InvalidInput, "exists.*--force")
    assert convert_graph(path, out, force=True) == out
    with pytest.raises(InvalidInput, match="named .mlpackage"):
        convert_graph(path, tmp_path / "made")
    with pytest.raises(InvalidInput, match="fp16, fp32"):
        convert_graph(path, tmp_path / "b.mlpackage", "int8")


def test_what_is_no_package_stays_even_where_it_may_be_replaced(tmp_path):
    path = one_node(tmp_path, node("Relu"))
    out, file = tmp_path / "made.mlpackage", tmp_path / "file.mlpackage"
    out.mkdir()
    (out / "mine").write_text("mine")
    file.write_text("mine")
    link = tmp_path / "link.mlpackage"
    link.symlink_to(convert_graph(path, tmp_path / "whole.mlpackage"))
    for place in (out, file, link):
        with pytest.raises(InvalidInput, match="is no package, and stays as it is"):
            convert_graph(path, place, force=True)
    assert (out / "mine").read_text() == file.read_text() == "mine" and link.is_symlink()


def test_what_is_not_the_packages_own_stays(tmp_path):
    path = one_node(tmp_path, node("Relu"))
    out = convert_graph(path, tmp_path / "made.mlpackage")
    for name in ("notes.txt", "Data/com.apple.CoreML/weights/model.onnx"):
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, out / name)
        before = content_hash(out)
        with pytest.raises(InvalidInput, match=f"holds {name}, which is not part of it"):
            convert_graph(out / name, out, force=True)
        assert content_hash(out) == before
        (out / name).unlink()
    (out / ".DS_Store").touch()  # a system's, which writes it again
    assert convert_graph(path, out, force=True) == out


def test_a_folder_that_is_called_as_a_former_package_stays(tmp_path):
    path, out = one_node(tmp_path, node("Relu")), tmp_path / "made.mlpackage"
    former = tmp_path / "made.mlpackage.replaced"
    former.mkdir()
    convert_graph(path, out)
    before = content_hash(out)
    with pytest.raises(InvalidInput, match="made.mlpackage.replaced is in the way"):
        convert_graph(path, out, force=True)
    assert former.is_dir() and content_hash(out) == before


@pytest.mark.parametrize("force", [False, True])
def test_what_came_while_it_was_converted_stays(tmp_path, monkeypatch, force):
    path, out = one_node(tmp_path, node("Relu")), tmp_path / "made.mlpackage"
    monkeypatch.setattr("mlprogram.onnx.graph.spread_weights", lambda _: out.mkdir())
    with pytest.raises(InvalidInput, match="is no package" if force else "exists"):
        convert_graph(path, out, force=force)
    assert not [*out.iterdir()] and sorted(tmp_path.iterdir()) == [out, path]


def test_a_command_that_is_told_to_end_leaves_nothing(tmp_path, monkeypatch):
    path = one_node(tmp_path, node("Relu"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("mlprogram.onnx.graph.spread_weights", end)
    assert mlprogram("convert", path, "--out", tmp_path / "made.mlpackage").returncode == 143
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_is_not_there_is_told_before_anything_else(tmp_path):
    done = mlprogram("convert", tmp_path / "no.onnx")
    assert done.returncode == 2 and "no.onnx: not a file" in done.stderr


def test_the_command_says_it_in_one_line(tmp_path):
    path = one_node(tmp_path, node("Relu"), ["n", 3])
    out = tmp_path / "m.mlpackage"
    for options, said in (
        (["--out", out], "--shape x=1,3"),
        (["--out", out, "--shape", "x=1,b"], "--shape x=1,b"),
        (["--out", out, "--shape", "1,3"], "--shape 1,3 is not like x=1,3,224,224"),
        ([], "--out model.mlpackage"),
    ):
        done = mlprogram("convert", path, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr and done.stderr.count("\n") == 1
    assert not out.exists()
