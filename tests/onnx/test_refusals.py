"""What is refused: one error that names file, node and inputs, and nothing is written."""

from _command import mlprogram
from _graphs import Maker, helper, numpy_helper, onnx
from mlprogram.errors import (
    InvalidInput,
    InvalidWeights,
    MLProgramError,
    UnsupportedModel,
    UnsupportedOp,
)
from mlprogram.onnx.graph import convert_graph
import numpy as np
import pytest


def refused(path, error: type[MLProgramError], *said: str, **how) -> str:
    """Convert, and find the one error, with no file left beside the graph's."""
    before = set(path.parent.iterdir())
    with pytest.raises(error) as found:
        convert_graph(path, path.parent / "made.mlpackage", **how)
    text = str(found.value)
    assert [words for words in said if words not in text] == [], text
    assert set(path.parent.iterdir()) == before
    return text


def one_node(path, node, shape=(2, 3), opset: int = 17, dtype=np.float32, constants=()):
    """A graph of one node that takes `x`."""
    make = Maker()
    make.input("x", shape, dtype)
    make.nodes.append(node)
    make.constants.extend(constants)
    return make.save(path / "model.onnx", [node.output[0]], opset)


def test_an_operator_that_is_not_known(tmp_path):
    """By its name and inputs, with what is near; of another domain, with that."""
    node = helper.make_node("Reluu", ["x"], ["y"], name="act")
    refused(one_node(tmp_path, node), UnsupportedOp, "'act'", "Reluu", "x float32 (2, 3)", "Relu")
    node = helper.make_node("MatMulNBits", ["x"], ["y"], domain="com.microsoft")
    refused(one_node(tmp_path, node), UnsupportedOp, "com.microsoft.MatMulNBits", "makes 'y'")


def test_an_operator_without_a_form_in_mil(tmp_path):
    refused(one_node(tmp_path, helper.make_node("Det", ["x"], ["y"]), (3, 3)), UnsupportedOp, "Det")
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2])
    refused(one_node(tmp_path, node, (1, 1, 4, 4)), UnsupportedOp, "MaxPool", "indices")


def test_an_attribute_that_is_not_known(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], colour="red")
    refused(one_node(tmp_path, node), UnsupportedOp, "Relu", "attribute 'colour'")


def test_control_flow(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])],
        "b",
        [],
        [helper.make_empty_tensor_value_info("z")],
    )
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    refused(one_node(tmp_path, node, (1,), dtype=bool), UnsupportedOp, "If", "control flow")


def test_a_node_that_makes_nothing(tmp_path):
    path = one_node(tmp_path, helper.make_node("Relu", ["x"], [""]))
    refused(path, UnsupportedModel, "nothing gives output ''")


def test_what_shapes_the_graph_has_to_be_known(tmp_path):
    make = Maker()
    make.input("x", [2, 3])
    make.input("shape", [2], np.int64)
    path = make.save(tmp_path / "model.onnx", [make("Reshape", "x", "shape")])
    refused(path, UnsupportedOp, "Reshape", "'shape'", "known only when the program runs")
    convert_graph(path, tmp_path / "y.mlpackage", constants={"shape": np.int64([3, 2])})


def test_sizes_that_are_open_are_asked_for_by_name(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    path = one_node(tmp_path, node, ["batch", 3])
    refused(path, InvalidInput, "'x'", "(batch, 3)", "--shape x=1,3")
    refused(path, InvalidInput, "(batch, 3)", "(1, 4)", shapes={"x": (1, 4)})
    refused(path, InvalidInput, "no input 'z'", "there are: x", shapes={"z": (1, 3)})
    refused(path, UnsupportedModel, "(0, 3)", shapes={"x": (0, 3)})


def test_an_opset_from_the_future(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    refused(one_node(tmp_path, node, opset=999), UnsupportedModel, "opset 999")


def test_what_an_older_opset_has_and_onnx_does_not_carry_over(tmp_path):
    """By the operator's name and opset, in no words of onnx's own code."""
    node = helper.make_node("ImageScaler", ["x"], ["y"], scale=2.0)
    path = one_node(tmp_path, node, opset=6)
    said = refused(path, UnsupportedModel, "opset 6", "ONNX does not define ImageScaler")
    assert "%" not in said
    node = helper.make_node("Pad", ["x"], ["y"], paddings=[0] * 4)
    said = refused(one_node(tmp_path, node, opset=1), UnsupportedModel, "Pad of opset 1")
    assert ".h:" not in said and "Assertion" not in said
    node = helper.make_node("ThresholdedRelu", ["x"], ["y"])
    path = one_node(tmp_path, node, opset=6)
    refused(path, UnsupportedModel, "opset 6", "has no ThresholdedRelu")


def test_numbers_that_core_ml_does_not_have(tmp_path):
    node = helper.make_node("Identity", ["x"], ["y"])
    refused(one_node(tmp_path, node, dtype=np.complex64), UnsupportedModel, "input 'x'")
    large = numpy_helper.from_array(np.int64([2**40]), "large")
    node = helper.make_node("Add", ["x", "large"], ["y"])
    path = one_node(tmp_path, node, (1,), dtype=np.int64, constants=[large])
    refused(path, UnsupportedOp, "Add", "beyond int32", "1,099,511,627,776")


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
    refused(path, InvalidWeights, "2,147,483,648 bytes", "external data")


def test_constants_outside_of_the_folder_or_cut_short(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    (folder / "short").write_bytes(bytes(20))
    places = {
        "../secret": "outside",
        str(secret): "outside",
        "link": "outside",
        "gone": "missing",
        "short": "cut short",
        "": "outside",
    }
    for place, said in places.items():
        tensor = onnx.TensorProto(name="w", data_type=1, dims=[2, 3], data_location=1)
        tensor.external_data.add(key="location", value=place)
        node = helper.make_node("Add", ["x", "w"], ["y"])
        refused(one_node(folder, node, constants=[tensor]), InvalidWeights, "'w'", said)


def test_a_constant_that_asks_for_more_memory_than_there_is(tmp_path):
    sizes = numpy_helper.from_array(np.int64([2**20, 2**20]), "sizes")
    node = helper.make_node("ConstantOfShape", ["sizes"], ["big"])
    make = Maker()
    make.input("x", [1])
    make.nodes.append(node)
    make.constants.append(sizes)
    path = make.save(tmp_path / "model.onnx", [make("Add", "x", "big")])
    refused(path, UnsupportedOp, "ConstantOfShape", "1.1e+12 numbers")


def test_a_node_that_takes_what_nothing_gives(tmp_path):
    node = helper.make_node("Add", ["x", "ghost"], ["y"])
    refused(one_node(tmp_path, node), InvalidWeights, "'ghost'", "Add")


def test_a_package_that_is_there_stays(tmp_path):
    path = one_node(tmp_path, helper.make_node("Relu", ["x"], ["y"]))
    out = convert_graph(path, tmp_path / "made.mlpackage")
    refused(path, InvalidInput, "exists", "--force")
    assert convert_graph(path, out, force=True) == out
    with pytest.raises(InvalidInput, match="named .mlpackage"):
        convert_graph(path, tmp_path / "made")
    with pytest.raises(InvalidInput, match="fp16, fp32"):
        convert_graph(path, tmp_path / "b.mlpackage", "int8")


def test_what_is_no_package_stays_even_where_it_may_be_replaced(tmp_path):
    path = one_node(tmp_path, helper.make_node("Relu", ["x"], ["y"]))
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


def test_a_file_that_is_not_there_is_told_before_anything_else(tmp_path):
    done = mlprogram("convert", tmp_path / "no.onnx")
    assert done.returncode == 2 and "no.onnx: not a file" in done.stderr


def test_the_command_says_it_in_one_line(tmp_path):
    path = one_node(tmp_path, helper.make_node("Relu", ["x"], ["y"]), ["n", 3])
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
