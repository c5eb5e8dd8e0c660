"""An ONNX file made ready: of an opset that is known here, without functions, its constants read.

Constants that lie in files beside it are mapped, not read (`ane_book.onnx.file`).
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.onnx.file import ModelFile
from ane_book.onnx.graph.older import OLDEST, ONNX_DOMAINS, carried_over
from ane_book.onnx.graph.ops import OPERATORS
from ane_book.onnx.graph.order import all_nodes, put_in_order
import numpy as np

__all__ = ["GraphSource", "is_written_out", "opset_of"]

#: Defined by loops, or by chance; what is known of them is folded.
NOT_WRITTEN_OUT = {"Range", "SequenceMap", "Bernoulli"}


class GraphSource:
    """A file's graph, and its constants."""

    def __init__(self, path: Path):
        """Raises InvalidInput, InvalidWeights and UnsupportedModel."""
        self.path, self._file = path, ModelFile(path)
        for part in (self._file.model.graph, *self._file.model.functions):
            put_in_order(part)
        model = carried_over(self._file.model, opset_of(self._file.model), path)
        self.model = _expanded(_inlined(model, path), path)
        self.graph, self.opset = self.model.graph, opset_of(self.model)

    def constants(self, graph=None) -> Iterator[tuple[str, np.ndarray]]:
        """Those of the graph, or of one in it, by name, in ONNX's types."""
        graph = graph or self.graph
        if graph.sparse_initializer:
            raise UnsupportedModel(f"{self.path} has sparse constants: store them dense")
        for tensor in graph.initializer:
            yield tensor.name, self.array(tensor)

    def array(self, tensor) -> np.ndarray:
        """A constant. Raises InvalidWeights."""
        from onnx import TensorProto, numpy_helper

        where = f"{self.path}: constant {tensor.name!r}"
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._mapped(tensor, where)
        try:
            return numpy_helper.to_array(tensor)
        except Exception as error:  # whatever a damaged tensor brings about there
            raise InvalidWeights(f"{where} cannot be read: {error}") from None

    def _mapped(self, tensor, where: str) -> np.ndarray:
        from onnx import helper

        entries = {entry.key: entry.value for entry in tensor.external_data}
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        except (KeyError, TypeError, ValueError):
            raise InvalidWeights(f"{where}: neither its place nor its type can be read") from None
        data, shape = self._file.data_file(entries.get("location", ""), where), tuple(tensor.dims)
        if min(shape, default=0) < 0 or dtype.name in ("int4", "uint4", "int2", "uint2", "object"):
            raise InvalidWeights(f"{where}: {dtype} {shape} is not read from a file of its own")
        need = prod(shape) * dtype.itemsize
        if length not in (-1, need) or offset < 0 or offset + need > len(data):
            raise InvalidWeights(
                f"{where}: {dtype} {shape} takes {need:,} bytes; from {offset:,} on there are "
                f"{max(0, len(data) - offset):,}, and {max(length, 0):,} are said to be its: the "
                "file is cut short, or another's"
            )
        return data[offset : offset + need].view(dtype).reshape(shape)


def opset_of(model) -> int:
    return max((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), default=OLDEST)


def _inlined(model, path: Path):
    if not model.functions:
        return model
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(model)
    except Exception as error:  # from C++
        raise InvalidWeights(f"{path}: its functions cannot be inlined: {error}") from None


def is_written_out(name: str, opset: int) -> bool:
    """Whether an operator is converted as those that ONNX defines it by."""
    from onnx import defs

    if name in OPERATORS or name in NOT_WRITTEN_OUT or not defs.has(name, opset, ""):
        return False
    schema = defs.get_schema(name, opset, "")
    return schema.has_function or schema.has_context_dependent_function


def _expanded(model, path: Path):
    """The model, its operators without a function here written as those that define them."""
    from onnx.inliner import inline_selected_functions

    opset, left = opset_of(model), 8  # a definition may use others that are defined so
    while left:
        nodes = [node for node in all_nodes(model.graph) if node.domain in ONNX_DOMAINS]
        nodes = [node for node in nodes if is_written_out(node.op_type, opset)]
        if not nodes:
            break
        names = sorted({("", node.op_type) for node in nodes})
        for node in nodes:
            _complete(node, opset)
        try:
            model = inline_selected_functions(model, names, inline_schema_functions=True)
        except Exception as error:  # from C++
            named = ", ".join(name for _, name in names)
            raise UnsupportedModel(
                f"{path}: onnx cannot write {named} out as the operators it is defined by: {error}"
            ) from None
        left -= 1
    return model


def _complete(node, opset: int) -> None:
    """Say the attributes that are left out: onnx leaves them out of what it writes, too."""
    from onnx import defs

    given = {attribute.name for attribute in node.attribute}
    for name, attribute in defs.get_schema(node.op_type, opset, "").attributes.items():
        if attribute.default_value.name and name not in given:
            node.attribute.append(attribute.default_value)
