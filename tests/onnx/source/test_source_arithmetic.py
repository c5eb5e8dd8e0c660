"""`mlprogram diff PACKAGE --source` names what depends on how Core ML computes it."""

import json

from _command import mlprogram
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def test_where_a_package_and_its_source_part_it_is_named(tmp_path):
    """ONNX's Mod of whole numbers has the sign of the divisor, Core ML's that of the dividend."""

    @mb.program(input_specs=[mb.TensorSpec((2,), types.int32)], opset_version=ct.target.iOS18)
    def program(x):
        return mb.mod(x=x, y=np.int32(4), name="y")

    options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    ct.convert(program, **options).save(str(tmp_path / "m.mlpackage"))
    divisor = numpy_helper.from_array(np.int32(4), "divisor")
    x, y = (helper.make_tensor_value_info(n, TensorProto.INT32, [2]) for n in "xy")
    node = helper.make_node("Mod", ["x", "divisor"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [divisor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.int32([-7, 7]))

    given = ["--source", tmp_path / "m.onnx", "--inputs", tmp_path / "x.npz"]
    done = mlprogram("diff", tmp_path / "m.mlpackage", *given)
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("depends on how Core ML computes the remainder") and "'y'" in last
    facts = json.loads(mlprogram("diff", tmp_path / "m.mlpackage", *given, "--json").stdout)
    assert facts["arithmetic"] == {"mod-sign": ["y"]} and not facts["equal"]
