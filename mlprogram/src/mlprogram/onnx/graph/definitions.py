"""Operators that ONNX defines by others, which stand in their place where ops/ has no function.

The definition is asked for node by node, when the types of its operands are known: a file need not
say what type a value has, and some definitions depend on it.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from mlprogram.onnx.file import subgraphs
from mlprogram.onnx.graph.ops import OPERATORS
from mlprogram.onnx.graph.values import Value
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, defs, helper

Schema: TypeAlias = Any  # onnx's OpSchema, whose stubs lack much of what its C++ has

#: Operators that are not written out, since ONNX defines them by loops or random numbers. With
#: constant inputs they are folded.
NOT_WRITTEN_OUT = {"Range", "SequenceMap", "Bernoulli"}


def is_written_out(name: str, opset: int) -> bool:
    """Whether an operator is replaced by the operators in ONNX's definition of it."""
    if name in OPERATORS or name in NOT_WRITTEN_OUT or not defs.has(name, opset, ""):
        return False
    schema: Schema = defs.get_schema(name, opset, "")
    return schema.has_function or schema.has_context_dependent_function


def definition(
    node: NodeProto, inputs: Sequence[Value | None], schema: Schema, opset: int
) -> FunctionProto:
    """The operators that define a node, with its attributes in them."""
    whole = NodeProto()
    whole.CopyFrom(node)
    present = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():  # onnx does not fill in what is left out
        if attribute.default_value.name and name not in present:
            whole.attribute.append(attribute.default_value)
    if versions := schema.function_opset_versions:
        data = schema.get_function_with_opset_version(_newest(versions, opset))
    else:
        versions = schema.context_dependent_function_opset_versions
        data = schema.get_context_dependent_function_with_opset_version(
            _newest(versions, opset),
            whole.SerializeToString(),
            [_type(value).SerializeToString() for value in inputs],
        )
    function = FunctionProto.FromString(data)
    given = {attribute.name: attribute for attribute in whole.attribute}
    absent = {
        name for i, name in enumerate(function.input) if i >= len(inputs) or inputs[i] is None
    }
    _fill(function.node, given, absent)
    used = [i for i, name in enumerate(node.output) if name]  # of others nothing may be made
    outputs = [function.output[i if i in used else used[0]] for i in range(len(node.output))]
    function.output[:] = outputs if used else []
    return function


def _newest(versions: Iterable[int], opset: int) -> int:
    return max(version for version in versions if version <= opset)


def _type(value: Value | None) -> TypeProto:
    if value is None:
        return TypeProto()
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_type_proto(kind, value.shape)


def _fill(
    nodes: Iterable[NodeProto], given: Mapping[str, AttributeProto], absent: Container[str]
) -> None:
    """Put the caller's attributes in the place of references to them, and leave out, in place, the
    operands that the caller leaves out."""
    for node in nodes:
        for i, name in enumerate(node.input):
            if name in absent:
                node.input[i] = ""
        kept = []
        for item in node.attribute:
            if not item.ref_attr_name:
                kept.append(item)
            elif item.ref_attr_name in given:
                filled = AttributeProto()
                filled.CopyFrom(given[item.ref_attr_name])
                filled.name = item.name
                kept.append(filled)
        attributes = [AttributeProto.FromString(item.SerializeToString()) for item in kept]
        node.ClearField("attribute")
        node.attribute.extend(attributes)
        for inner in subgraphs(node):
            _fill(inner.node, given, absent)
