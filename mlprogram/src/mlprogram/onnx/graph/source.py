"""Read an ONNX file for translation: convert its opset, inline its functions, sort its nodes.

Constants in files beside it are mapped into memory, not read (`mlprogram.onnx.file`).
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from mlprogram.errors import InvalidWeights, UnsupportedModel
from mlprogram.onnx.file import ModelFile, opset_of
from mlprogram.onnx.graph.older import carried_over, plainly
from mlprogram.onnx.graph.order import put_in_order
import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper
from onnx.inliner import inline_local_functions


class GraphSource:
    """A file's graph and its constants."""

    def __init__(self, path: Path):
        """Raises InvalidInput, InvalidWeights and UnsupportedModel."""
        self.path, self._file = path, ModelFile(path)
        model = self._file.model
        for part in (model.graph, *model.functions):
            put_in_order(part)
        model = carried_over(model, opset_of(model), path)
        try:
            self.model = inline_local_functions(model) if model.functions else model
        except Exception as error:  # from C++
            why = plainly(str(error))
            raise InvalidWeights(f"{path}: its functions cannot be inlined: {why}") from None
        self.graph, self.opset = self.model.graph, opset_of(self.model)

    def constants(self, graph: GraphProto | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """The initializers of the graph, or of a subgraph, by name, in ONNX's types."""
        graph = graph or self.graph
        if graph.sparse_initializer:
            raise UnsupportedModel(f"{self.path} has sparse constants: store them dense")
        for tensor in graph.initializer:
            yield tensor.name, self.array(tensor)

    def array(self, tensor: TensorProto) -> np.ndarray:
        """Read a constant. Raises InvalidWeights."""
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
