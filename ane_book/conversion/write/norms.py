"""Repair what coremltools makes of a norm: one op, with the eps that was meant.

A layer norm over channels that is written out becomes a `layer_norm`, but its weight and bias
become a `batch_norm` after it, whose own eps of 1e-5 shrinks the weight by 5e-6. Here the two are
one `layer_norm` with gamma and beta, the form of Apple's own models for the Neural Engine.

Reference: coremltools 9.0, the passes `fuse_layernorm_or_instancenorm` and
`fuse_elementwise_to_batchnorm`.
"""

from collections.abc import Collection

import numpy as np


def join_norms(operations: list) -> list:
    """Join each layer_norm with the batch_norm that scales it; ops are MIL_pb2.Operation."""
    makers = {output.name: o for o in operations for output in o.outputs}
    norms = []
    for operation in operations:
        if operation.type != "batch_norm":
            continue
        norm = makers[operation.inputs["x"].arguments[0].name]
        if norm.type == "layer_norm":
            norms.append(norm)
            operation.type = norm.type
            for key in ("mean", "variance"):  # 0 and 1: it was made of a product and a sum
                del operation.inputs[key]
            for key in ("x", "axes", "epsilon"):
                operation.inputs[key].CopyFrom(norm.inputs[key])
    remaining = [o for o in operations if not any(o is norm for norm in norms)]
    used = {name for o in remaining for key in o.inputs for name in operands(o, key)}
    return [o for o in remaining if o.type != "const" or o.outputs[0].name in used]


def sharpen_epsilon(operations: list, epsilons: Collection[float]) -> None:
    """Give every layer_norm its eps in single precision (iOS 17 lets its dtype differ from x's).

    epsilons: those of the module's norms; each rounded eps becomes the nearest of them again.
    """
    from coremltools.converters.mil.backend.mil import helper

    names = {name for o in operations if o.type == "layer_norm" for name in operands(o, "epsilon")}
    for operation in operations:
        if operation.outputs and operation.outputs[0].name in names:
            half = operation.attributes["val"].immediateValue.tensor.bytes.values
            (rounded,) = np.frombuffer(half, np.float16).astype(np.float64)
            epsilon = min(epsilons, key=lambda own: abs(own - rounded))
            value = helper.create_scalar_value(np.float32(epsilon))
            operation.attributes["val"].CopyFrom(value)
            operation.outputs[0].type.CopyFrom(value.type)


def operands(operation, key: str) -> list[str]:
    """The names of the values that an op takes as `key`."""
    return [b.name for b in operation.inputs[key].arguments] if key in operation.inputs else []
