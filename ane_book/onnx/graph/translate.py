"""The walk over an ONNX graph: node by node into a MIL program, folding what is known.

A node that cannot be said in MIL ends it, with one error that names node, inputs, and the reason.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from inspect import Parameter
import re
from typing import get_args

from ane_book.errors import InvalidWeights, UnsupportedOp
from ane_book.onnx.graph.fold import NotFolded, fold, is_foldable
from ane_book.onnx.graph.older import ONNX_DOMAINS
from ane_book.onnx.graph.ops import OPERATORS, Constant, Operator, Unsayable
from ane_book.onnx.graph.ops._axes import EACH_NUMBER, few_axes, is_high, with_few_axes
from ane_book.onnx.graph.ops._common import (
    Var,
    in_mil,
    is_bool,
    is_float,
    mb,
    reshaped,
    shape_of,
)
from ane_book.onnx.graph.source import GraphSource
from ane_book.onnx.graph.values import Value, wrapped
import numpy as np

__all__ = ["GraphWalk", "NeedsConstant"]

#: What coremltools' builder raises for what it does not take.
REFUSALS = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}


class NeedsConstant(UnsupportedOp):
    """What shapes the program is known only when it runs; `origins`: the inputs it rests on."""

    def __init__(self, message: str, origins: list[str]):
        super().__init__(message)
        self.origins = origins


class GraphWalk:
    """Converts the nodes of one graph, inside a MIL function that is being built."""

    def __init__(self, source: GraphSource, known: Mapping[str, np.ndarray]):
        self.source, self.path, self.graph = source, source.path, source.graph
        self.values = {name: Value(a, a.dtype) for name, a in source.constants()}
        self.values |= {
            name: Value(np.asarray(a), np.asarray(a).dtype) for name, a in known.items()
        }
        self._names: set[str] = set()

    def run(self) -> None:
        for node in self.graph.node:
            self._convert(node)

    def _convert(self, node) -> None:
        inputs = [self._find(name, node) for name in node.input]
        try:
            results = self._results(node, inputs)
        except Unsayable as error:
            raise UnsupportedOp(self._say(node, inputs, str(error))) from None
        for name, value in zip(node.output, results, strict=False):
            if name:
                self.values[name] = value

    def _find(self, name: str, node) -> Value | None:
        if name and name not in self.values:
            raise InvalidWeights(
                f"{self.path}: {_called(node)} takes {name!r}, which nothing before it gives"
            )
        return self.values[name] if name else None

    def _results(self, node, inputs: list[Value | None]) -> list[Value]:
        if node.domain not in ONNX_DOMAINS:
            raise Unsayable(f"an operator of {node.domain}, not one of ONNX's own")
        if node.op_type == "If" and inputs and inputs[0] is not None and inputs[0].is_known:
            return self._branch(node, inputs[0].data)
        if node.op_type in CONTROL_FLOW:
            decide = inputs[0] if node.op_type == "If" and inputs else None
            origins = sorted(decide.origins) if decide is not None else []
            known = f", or make {', '.join(origins)} known (constants=)" if origins else ""
            raise Unsayable(f"control flow: export the model for one path and one length{known}")
        schema = self._schema(node)
        if is_foldable(node, inputs):
            try:
                return [Value(array, array.dtype) for array in self._folded(node, inputs)]
            except NotFolded as error:
                return self._computed(node, inputs, schema, error)
        return self._named(node, self._made(node, inputs, schema))

    def _branch(self, node, condition: np.ndarray) -> list[Value]:
        """What an `If` gives by the branch that a known condition takes."""
        if condition.size != 1:
            raise Unsayable(f"a condition of {condition.size} values")
        wanted = "then_branch" if condition.item() else "else_branch"
        branch = next((a.g for a in node.attribute if a.name == wanted), None)
        if branch is None:
            raise Unsayable(f"an If without its {wanted}")
        outer = self.values  # names that the branch gives are of no use behind it
        self.values = outer | {n: Value(a, a.dtype) for n, a in self.source.constants(branch)}
        try:
            for inner in branch.node:
                self._convert(inner)
            return [self._find(feature.name, node) for feature in branch.output]
        finally:
            self.values = outer

    def _computed(self, node, inputs, schema, error: NotFolded) -> list[Value]:
        """Results of known operands that onnx does not compute, by the operator's own function.

        coremltools works out what it makes of them, in a MIL function that is thrown away. Where it
        does not, the program computes them when it runs.
        """
        from coremltools import target
        from coremltools.converters.mil.mil import Function

        try:
            with Function({}, opset_version=target.iOS18):
                made = self._made(node, inputs, schema)
        except Unsayable as reason:
            raise Unsayable(f"{error}; nor is it given {reason}") from None
        found = [value.data if value.is_known else value.data.val for value in made]
        if any(array is None for array in found):
            return self._named(node, self._made(node, inputs, schema))
        return [
            Value(np.asarray(array).astype(value.dtype), value.dtype)
            for array, value in zip(found, made, strict=True)
        ]

    def _made(self, node, inputs: list[Value | None], schema) -> list[Value]:
        """The results of a node, computed by the MIL function that is being built."""
        operator = self._operator(node, schema)
        dtypes = _declared(schema, node, inputs)
        arguments = self._arguments(node, operator, inputs)
        keywords = self._keywords(node, operator, dtypes, schema.since_version)
        origins = frozenset().union(*(v.origins for v in inputs if v is not None))
        with few_axes():
            made = _call(node.op_type, arguments, keywords)
            made = [_copied(x) if any(x is a for a in arguments) else x for x in made]
            return [
                _result(node.op_type, x, dtype, origins)
                for x, dtype in zip(made, dtypes, strict=False)
            ]

    def _named(self, node, made: list[Value]) -> list[Value]:
        """The results, called in the program what they are called in the graph."""
        for value, name in zip(made, node.output, strict=False):
            if not value.is_known:
                value.data.name = self.name(name)
        return made

    def _folded(self, node, inputs: list[Value | None]) -> list[np.ndarray]:
        if node.op_type == "Constant" and [a.name for a in node.attribute] == ["value"]:
            return [self.source.array(node.attribute[0].t)]
        return fold(node, inputs, self.source.opset)

    def _schema(self, node):
        """ONNX's definition of a node's operator. Raises Unsayable."""
        from onnx import defs

        try:
            return defs.get_schema(node.op_type, self.source.opset, "")
        except defs.SchemaError:
            raise Unsayable(
                f"an operator that opset {self.source.opset} does not have{_near(node)}"
            ) from None

    def _operator(self, node, schema) -> Operator:
        operator = OPERATORS.get(node.op_type)
        if operator is None:
            raise Unsayable(f"an operator without a form in MIL here{_near(node)}")
        if not operator.since <= schema.since_version <= operator.until:
            raise Unsayable(
                f"its definition of opset {schema.since_version}; known here are those of "
                f"{operator.since} to {operator.until}"
            )
        return operator

    def _arguments(self, node, operator: Operator, inputs: list[Value | None]) -> list:
        """The inputs as the function takes them."""
        if operator.is_variadic:
            return [in_mil(v.data) if v.is_known else v.data for v in inputs]
        if len(inputs) > len(operator.parameters):
            raise Unsayable(f"{len(inputs)} inputs")
        arguments = []
        for value, parameter in zip(inputs, operator.parameters, strict=False):
            if value is not None and not value.is_known and _is_constant(parameter):
                raise self._unknown(node, inputs, parameter.name, sorted(value.origins))
            arguments.append(_argument(value, parameter))
        return arguments

    def _unknown(self, node, inputs, name: str, origins: list[str]) -> Exception:
        """The error where an input has to be known, and rests on these of the graph's."""
        if not origins:
            return Unsayable(f"input {name!r}, which coremltools does not compute of constants")
        reason = (
            f"input {name!r} that is known only when the program runs: it rests on "
            f"{', '.join(origins)}"
        )
        return NeedsConstant(self._say(node, inputs, reason), origins)

    def _keywords(self, node, operator: Operator, dtypes: list, since: int) -> dict:
        """The attributes, and what else the function asks for by name."""
        from onnx import helper

        found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if "axes" in found:  # as where it is an input
            found["axes"] = np.array(found["axes"], np.int64)
        if unknown := [name for name in found if not operator.takes(name)]:
            raise Unsayable(f"attribute {unknown[0]!r}")
        asked = {
            "outputs": max(i for i, name in enumerate(node.output, 1) if name),
            "dtype": dtypes[0],
            "since": since,
        }
        return found | {name: v for name, v in asked.items() if name in operator.keywords}

    def name(self, wanted: str) -> str:
        """A name that Core ML takes and that no other has."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        plain = plain if re.match("[A-Za-z_]", plain) else f"_{plain}"
        unique, count = plain, 1
        while unique in self._names:
            count += 1
            unique = f"{plain}_{count}"
        self._names.add(unique)
        return unique

    def _say(self, node, inputs: list[Value | None], why: str) -> str:
        told = [
            f"{name} {v.dtype} {v.shape}{' known' * v.is_known}"
            for name, v in zip(node.input, inputs, strict=True)
            if v is not None
        ]
        of = "; ".join(told) or "nothing"
        return f"{self.path}: {_called(node)} of {of}: Core ML is not given {why}"


def _called(node) -> str:
    domain = f"{node.domain}." if node.domain else ""
    return (
        f"node {node.name!r} ({domain}{node.op_type})"
        if node.name
        else f"a node {domain}{node.op_type} that makes {list(node.output)}"
    )


def _near(node) -> str:
    near = get_close_matches(node.op_type, OPERATORS, 3, 0.7)
    return f"; near are {', '.join(near)}" if near else ""


def _is_constant(parameter: Parameter) -> bool:
    return Constant in (parameter.annotation, *get_args(parameter.annotation))


def _argument(value: Value | None, parameter: Parameter):
    if value is None or not value.is_known:
        return None if value is None else value.data
    return value.data if _is_constant(parameter) else in_mil(value.data)


def _copied(x: Var) -> Var:
    """What is given on under another name."""
    return reshaped(x, shape_of(x)) if is_high(x) else mb.identity(x=x)


def _call(op: str, arguments: list, keywords: dict) -> list[Var]:
    """The results of an operator's function; what the builder refuses is Unsayable."""
    function = partial(OPERATORS[op].function, **keywords)
    try:
        if op in EACH_NUMBER and is_high(*arguments):
            made = with_few_axes(function, arguments)
        else:
            made = function(*arguments)
    except REFUSALS as error:
        reason = str(error).strip() or type(error).__name__
        raise Unsayable(f"what MIL does not take: {reason}") from error
    return list(made) if isinstance(made, tuple | list) else [made]


def _result(op: str, x: Var, dtype: np.dtype | None, origins: frozenset[str]) -> Value:
    """A result in its type."""
    if isinstance(x, np.ndarray):  # an empty tensor, which Core ML does not have
        return Value(x.astype(dtype or x.dtype), dtype or x.dtype)
    x = wrapped(x, dtype or _of(x), op)
    return Value(x, dtype or _of(x), origins)


def _declared(schema, node, inputs: list[Value | None]) -> list[np.dtype | None]:
    """The types that ONNX gives a node's results, where its definition says so."""
    from onnx import helper

    types, formal = {"tensor(int64)": np.dtype(np.int64)}, list(schema.inputs)
    for i, value in enumerate(inputs):
        if value is not None:
            types.setdefault(formal[min(i, len(formal) - 1)].type_str, value.dtype)
    formal = list(schema.outputs)
    for attribute in node.attribute:
        if attribute.name in ("to", "output_dtype", "dtype") and attribute.i:
            asked = np.dtype(helper.tensor_dtype_to_np_dtype(attribute.i))
            types.setdefault(formal[0].type_str, asked)
    last = len(formal) - 1
    return [types.get(formal[min(i, last)].type_str) for i in range(len(node.output))]


def _of(x: Var) -> np.dtype:
    return np.dtype(bool if is_bool(x) else np.float32 if is_float(x) else np.int32)
