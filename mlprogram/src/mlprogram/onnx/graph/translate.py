"""Translate the nodes of an ONNX graph to MIL, folding those with constant inputs.

A node without a form in MIL raises an error that names the node, its inputs, and the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args

from mlprogram.errors import InvalidWeights, UnsupportedOp
from mlprogram.onnx.evaluate import NotComputed, TooLarge, evaluate
from mlprogram.onnx.file import ONNX_DOMAINS, describe
from mlprogram.onnx.graph.control import CONTROL
from mlprogram.onnx.graph.definitions import definition, is_written_out
from mlprogram.onnx.graph.older import plainly
from mlprogram.onnx.graph.ops import OPERATORS, Bound, Constant, Operator, Unsayable
from mlprogram.onnx.graph.ops._axes import EACH_NUMBER, few_axes, is_high, with_few_axes
from mlprogram.onnx.graph.ops._common import (
    Tensor,
    in_mil,
    is_bool,
    is_float,
    mb,
    reshaped,
    shape_of,
)
from mlprogram.onnx.graph.source import GraphSource
from mlprogram.onnx.graph.values import Value, is_foldable, wrapped
import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, defs, helper
from onnx.defs import OpSchema

Inputs = Sequence[Value | None]

DEEPEST = 50  # graphs inside of one another
OF_ONNX_RUNTIME = ("com.microsoft", "com.ms.")  # the first letters of its domains


class NeedsConstant(UnsupportedOp):
    """An input that shapes the program is not constant; `origins`: graph inputs it depends on."""

    def __init__(self, message: str, origins: list[str]):
        super().__init__(message)
        self.origins = origins


class GraphWalk:
    """Converts the nodes of one graph inside a MIL function that is being built."""

    def __init__(self, source: GraphSource, known: Mapping[str, np.ndarray]):
        self.source, self.path, self.graph = source, source.path, source.graph
        self.values = self.constants() | {n: Value.known(array) for n, array in known.items()}
        self._opset = source.opset
        self._inside: tuple[str, ...] = ()  # what the present graph is a part of
        self._names: set[str] = set()

    def constants(self, graph: GraphProto | None = None) -> dict[str, Value]:
        """The constants that are stored in the graph, or in a subgraph."""
        return {name: Value.known(array) for name, array in self.source.constants(graph)}

    def convert(self, nodes: Iterable[NodeProto]) -> None:
        """Fold each node, or add the MIL ops that compute it."""
        for node in nodes:
            inputs = [self._find(name, node) if name else None for name in node.input]
            try:
                results = self._results(node, inputs)
            except Unsayable as error:
                text = self._say(node, inputs, str(error))
                if error.origins:
                    raise NeedsConstant(text, error.origins) from None
                raise UnsupportedOp(text) from None
            named = zip(node.output, results, strict=False)
            self.values |= {name: value for name, value in named if name}

    def _find(self, name: str, node: NodeProto) -> Value:
        if name not in self.values:
            raise InvalidWeights(
                f"{self.path}: {describe(node)}: {name!r} is what nothing before it gives"
            )
        return self.values[name]

    def nested(
        self,
        node: NodeProto,
        part: GraphProto | FunctionProto,
        given: Mapping[str, Value],
        what: str = "",
    ) -> list[Value]:
        """Convert a subgraph of a node, or its definition, and return its outputs.

        given: its inputs and constants. A subgraph sees the names around it as well; what is inside
        is not visible after it. what: of the node it is, for errors.
        """
        if len(self._inside) == DEEPEST:
            raise Unsayable(f"a graph inside of {DEEPEST} others")
        outer = self.values, self._opset, self._inside
        self._inside = (", ".join(filter(None, (describe(node), what))), *self._inside)
        if hasattr(part, "opset_import"):
            opsets = [one.version for one in part.opset_import if one.domain in ONNX_DOMAINS]
            self._opset, self.values = max(opsets, default=self._opset), {**given}
        else:
            self.values = {**self.values, **given}
        try:
            self.convert(part.node)
            return [self._find(getattr(x, "name", x), node) for x in part.output]
        finally:
            self.values, self._opset, self._inside = outer

    def apply(self, op: str, *inputs: Value, **attributes) -> Value:
        """The result of an operator of ONNX's that is not a node of the graph."""
        names = [f"{op}_{i}" for i in range(len(inputs))]
        return self._results(helper.make_node(op, names, [op], **attributes), inputs)[0]

    def _results(self, node: NodeProto, inputs: Inputs) -> list[Value]:
        if node.domain not in ONNX_DOMAINS:
            raise Unsayable(_foreign(node.domain))
        if node.op_type in CONTROL:
            try:
                return CONTROL[node.op_type](self, node, inputs)
            except (LookupError, TypeError, ValueError) as error:
                raise Unsayable(f"inputs or a body that no {node.op_type} has ({error})") from error
        schema = self._schema(node)
        if is_written_out(node.op_type, self._opset):
            try:
                part = definition(node, inputs, schema, self._opset)
            except Exception as error:  # from C++
                why = plainly(str(error))
                raise Unsayable(
                    f"an operator that onnx cannot write out as others: {why}"
                ) from None
            named = zip(part.input, inputs, strict=False)
            given = {name: value for name, value in named if value is not None}
            return self._named(node, self.nested(node, part, given))
        if not is_foldable(node, inputs):
            return self._named(node, self._made(node, inputs, schema))
        try:
            return [Value.known(array) for array in self._folded(node, inputs)]
        except TooLarge as error:
            raise Unsayable(str(error)) from None
        except NotComputed as error:
            return self._computed(node, inputs, schema, error)

    def _computed(
        self, node: NodeProto, inputs: Inputs, schema: OpSchema, error: NotComputed
    ) -> list[Value]:
        """Fold a node that onnx cannot compute with the operator's own function in ops/.

        coremltools evaluates it in a MIL function that is thrown away. If it does not, the program
        computes the node when it runs.
        """
        from coremltools import target
        from coremltools.converters.mil.mil import Function

        try:
            with Function({}, opset_version=target.iOS18):
                made = self._made(node, inputs, schema)
        except Unsayable as reason:
            raise Unsayable(f"{error}; nor is it given {reason}") from None
        arrays = [x if isinstance(x, np.ndarray) else x.val for x in (value.data for value in made)]
        if any(array is None for array in arrays):
            return self._named(node, self._made(node, inputs, schema))
        return [
            Value(np.asarray(array).astype(value.dtype), value.dtype)
            for array, value in zip(arrays, made, strict=True)
        ]

    def _made(self, node: NodeProto, inputs: Inputs, schema: OpSchema) -> list[Value]:
        """Add the MIL ops of a node to the function that is being built; return its results."""
        operator = OPERATORS.get(node.op_type)
        if operator is None:
            raise Unsayable(f"an operator without a form in MIL here{_near(node)}")
        if not operator.since <= schema.since_version <= operator.until:
            raise Unsayable(
                f"its definition of opset {schema.since_version}; known here are those of "
                f"{operator.since} to {operator.until}"
            )
        dtypes = _declared(schema, node, inputs)
        arguments = self._arguments(node, operator, inputs)
        keywords = _keywords(node, operator, dtypes[0], schema.since_version)
        function = partial(operator.function, **keywords)
        origins = frozenset(name for v in inputs if v is not None for name in v.origins)
        with few_axes():
            try:
                high = node.op_type in EACH_NUMBER and is_high(*arguments)
                made = with_few_axes(function, arguments) if high else function(*arguments)
            except Unsayable:
                raise
            except Exception as error:  # of any kind, since coremltools' builder asserts as well
                reason = str(error).strip() or type(error).__name__
                raise Unsayable(f"what MIL does not take: {reason}") from error
            made = list(made) if isinstance(made, tuple | list) else [made]
            for i, x in enumerate(made):  # an input that is returned unchanged needs a new name
                if any(x is argument for argument in arguments):
                    made[i] = reshaped(x, shape_of(x)) if is_high(x) else mb.identity(x=x)
            return [
                _result(node.op_type, x, dtype, origins)
                for x, dtype in zip(made, dtypes, strict=False)
            ]

    def _named(self, node: NodeProto, made: list[Value]) -> list[Value]:
        """Give the results the names in the program that they have in the graph."""
        for value, name in zip(made, node.output, strict=False):
            if name and not isinstance(value.data, np.ndarray):
                value.data.name = self.name(name)
        return made

    def _folded(self, node: NodeProto, inputs: Inputs) -> list[np.ndarray]:
        if node.op_type == "Constant" and [a.name for a in node.attribute] == ["value"]:
            return [self.source.array(node.attribute[0].t)]
        named = zip(node.input, inputs, strict=True)
        operands = {name: value.operand for name, value in named if value is not None}
        return evaluate(node, operands, self._opset)

    def _schema(self, node: NodeProto) -> OpSchema:
        """ONNX's definition of a node's operator. Raises Unsayable."""
        try:
            return defs.get_schema(node.op_type, self._opset, "")
        except defs.SchemaError:
            raise Unsayable(
                f"an operator that opset {self._opset} does not have{_near(node)}"
            ) from None

    def _arguments(self, node: NodeProto, operator: Operator, inputs: Inputs) -> list:
        """Convert the inputs to the arguments of the operator's function."""
        if any(p.kind is p.VAR_POSITIONAL for p in operator.parameters):
            values = [value for value in inputs if value is not None]
            if len(values) < len(inputs):
                raise Unsayable("an input that is left out")
            return [in_mil(v.data) if v.is_known else v.data for v in values]
        if len(inputs) > len(operator.parameters):
            raise Unsayable(f"{len(inputs)} inputs")
        arguments: list[Tensor | None] = []
        for value, parameter in zip(inputs, operator.parameters, strict=False):
            annotation = parameter.annotation
            kinds = (annotation, *get_args(annotation))
            if value is None:
                arguments.append(None)
            elif value.is_known:
                arguments.append(in_mil(value.data, cut=Bound in kinds))
            elif Constant not in kinds and Bound not in kinds:
                arguments.append(value.data)
            elif value.origins:
                origins = sorted(value.origins)
                raise Unsayable(
                    f"input {parameter.name!r} that is known only when the program runs: it rests "
                    f"on {', '.join(origins)}",
                    origins,
                )
            else:
                raise Unsayable(
                    f"input {parameter.name!r}, which coremltools does not compute of constants"
                )
        return arguments

    def name(self, asked: str) -> str:
        """Make a unique name that Core ML accepts."""
        plain = accepted(asked)
        unique, count = plain, 1
        while unique in self._names:
            count += 1
            unique = f"{plain}_{count}"
        self._names.add(unique)
        return unique

    def _say(self, node: NodeProto, inputs: Inputs, why: str) -> str:
        """The error message about a node: the node, its inputs, and the reason."""
        operands = [
            f"{name} {v.dtype} {v.shape}{' known' * v.is_known}"
            for name, v in zip(node.input, inputs, strict=True)
            if v is not None
        ]
        inside = "".join(f", inside of {one}" for one in self._inside)
        where = f"{self.path}: {describe(node, '; '.join(operands))}{inside}"
        return f"{where}: Core ML is not given {why}"


def accepted(name: str) -> str:
    """The name as coremltools writes it, which replaces what is no identifier of Core ML's."""
    from coremltools.converters.mil.mil.passes.defs.preprocess import NameSanitizer

    return NameSanitizer(prefix="var_").sanitize_name(name)


def _foreign(domain: str) -> str:
    """Why a node of a domain other than ONNX's is refused, and how to get a file without any."""
    known = f"an operator of {domain}, not one of ONNX's own"
    if not domain.startswith(OF_ONNX_RUNTIME):
        return known
    return (
        f"{known}; ONNX Runtime's optimisers and quantisers write it: convert the file that the "
        "framework exported, or have it optimised with ORT_ENABLE_BASIC, which keeps to ONNX's own"
    )


def _near(node: NodeProto) -> str:
    near = get_close_matches(node.op_type, OPERATORS, 3, 0.7)
    return f"; near are {', '.join(near)}" if near else ""


def _keywords(
    node: NodeProto, operator: Operator, dtype: np.dtype | None, since: int
) -> dict[str, Any]:
    """The keyword arguments: the node's attributes, and those of outputs, dtype and since that the
    function has."""
    settings = [a for a in node.attribute if a.name != "seed"]  # of what no package draws
    attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in settings}
    for item in settings:
        in_mil(np.array([item.i, *item.ints], np.int64))  # raises beyond int32
    if "axes" in attributes:  # as where it is an input
        attributes["axes"] = np.array(attributes["axes"], np.int64)
    if unknown := [name for name in attributes if not operator.takes(name)]:
        raise Unsayable(f"attribute {unknown[0]!r}")
    used = max((i for i, name in enumerate(node.output, 1) if name), default=0)
    others = {"outputs": used, "dtype": dtype, "since": since}
    return attributes | {name: v for name, v in others.items() if name in operator.keywords}


def _result(op: str, x: Tensor, dtype: np.dtype | None, origins: frozenset[str]) -> Value:
    """Wrap a result in a `Value` of its ONNX type."""
    if isinstance(x, np.ndarray):  # an empty tensor, which Core ML does not have
        return Value.known(x.astype(dtype or x.dtype))
    if dtype is None:
        dtype = np.dtype(bool if is_bool(x) else np.float32 if is_float(x) else np.int32)
    return Value(wrapped(x, dtype, op), dtype, origins)


def _declared(schema: OpSchema, node: NodeProto, inputs: Inputs) -> list[np.dtype | None]:
    """The ONNX types of a node's results; None where the definition does not determine one."""
    types, formal = {"tensor(int64)": np.dtype(np.int64)}, list(schema.inputs)
    for i, value in enumerate(inputs):
        if value is not None:
            types.setdefault(formal[min(i, len(formal) - 1)].type_str, value.dtype)
    results = list(schema.outputs)
    for attribute in node.attribute:
        if attribute.name in ("to", "output_dtype", "dtype") and attribute.i:
            try:
                asked = np.dtype(helper.tensor_dtype_to_np_dtype(attribute.i))
            except KeyError:
                raise Unsayable(f"type {attribute.i:,}, which ONNX does not have") from None
            types.setdefault(results[0].type_str, asked)
    last = len(results) - 1
    return [types.get(results[min(i, last)].type_str) for i in range(len(node.output))]
