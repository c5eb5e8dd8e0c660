"""Read an ONNX file for translation: convert its opset, expand functions, sort nodes.

Constants in files beside it are mapped into memory, not read (`mlprogram.onnx.file`).
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from mlprogram.errors import InvalidWeights, UnsupportedModel
from mlprogram.onnx.file import ONNX_DOMAINS, ModelFile, all_nodes, opset_of
from mlprogram.onnx.graph.older import carried_over
from mlprogram.onnx.graph.ops import OPERATORS
from mlprogram.onnx.graph.order import put_in_order
import numpy as np

if TYPE_CHECKING:  # onnx is an extra
    from onnx import GraphProto, ModelProto, TensorProto


#: Operators that are not expanded, since ONNX defines them by loops or random numbers. With
#: constant inputs they are folded.
NOT_WRITTEN_OUT = {"Range", "SequenceMap", "Bernoulli"}


class GraphSource:
    """A file's graph and its constants."""

    def __init__(self, path: Path):
        """Raises InvalidInput, InvalidWeights and UnsupportedModel."""
        self.path, self._file = path, ModelFile(path)
        from onnx.inliner import inline_local_functions

        model = self._file.model
        for part in (model.graph, *model.functions):
            put_in_order(part)
        model = carried_over(model, opset_of(model), path)
        try:
            model = inline_local_functions(model) if model.functions else model
        except Exception as error:  # from C++
            raise InvalidWeights(f"{path}: its functions cannot be inlined: {error}") from None
        self.model = _expanded(model, path)
        self.graph, self.opset = self.model.graph, opset_of(self.model)

    def constants(self, graph: "GraphProto | None" = None) -> Iterator[tuple[str, np.ndarray]]:
        """The initializers of the graph, or of a subgraph, by name, in ONNX's types."""
        graph = graph or self.graph
        if graph.sparse_initializer:
            raise UnsupportedModel(f"{self.path} has sparse constants: store them dense")
        for tensor in graph.initializer:
            yield tensor.name, self.array(tensor)

    def array(self, tensor: "TensorProto") -> np.ndarray:
        """Read a constant. Raises InvalidWeights."""
        from onnx import TensorProto, helper, numpy_helper

        where, shape = f"{self.path}: constant {tensor.name!r}", tuple(tensor.dims)
        try:
            if tensor.data_location != TensorProto.EXTERNAL:
                return numpy_helper.to_array(tensor)
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        except Exception as error:  # whatever a damaged tensor brings about there
            raise InvalidWeights(f"{where} cannot be read: {error}") from None
        if min(shape, default=0) < 0 or dtype.name in ("int4", "uint4", "int2", "uint2", "object"):
            raise InvalidWeights(f"{where}: {dtype} {shape} is not read from a file of its own")
        data = self._file.external(tensor, prod(shape) * dtype.itemsize)
        return data.view(dtype).reshape(shape)


def is_written_out(name: str, opset: int) -> bool:
    """Whether an operator is replaced by the operators in ONNX's definition of it."""
    from onnx import defs

    if name in OPERATORS or name in NOT_WRITTEN_OUT or not defs.has(name, opset, ""):
        return False
    schema = defs.get_schema(name, opset, "")
    # onnx's stubs lack one of the two attributes, which its C++ has
    return schema.has_function or schema.has_context_dependent_function  # type: ignore[attr-defined]


def _expanded(model: "ModelProto", path: Path) -> "ModelProto":
    """Expand operators without a function in ops/ to those that define them."""
    from onnx import defs
    from onnx.inliner import inline_selected_functions

    opset = opset_of(model)
    for _ in range(8):  # a definition may use others that are defined so
        nodes = [node for node in all_nodes(model.graph) if node.domain in ONNX_DOMAINS]
        nodes = [node for node in nodes if is_written_out(node.op_type, opset)]
        if not nodes:
            break
        for node in nodes:  # attributes that are left out onnx leaves out of what it writes, too
            present = {attribute.name for attribute in node.attribute}
            for name, attribute in defs.get_schema(node.op_type, opset, "").attributes.items():
                if attribute.default_value.name and name not in present:
                    node.attribute.append(attribute.default_value)
        names = sorted({("", node.op_type) for node in nodes})
        try:
            model = inline_selected_functions(model, names, inline_schema_functions=True)
        except Exception as error:  # from C++
            named = ", ".join(name for _, name in names)
            raise UnsupportedModel(
                f"{path}: onnx cannot write {named} out as the operators it is defined by: {error}"
            ) from None
    return model
