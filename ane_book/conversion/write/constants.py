"""Constants that a graph needs whatever the weights, such as the numbers 0 to E - 1 of experts.

coremltools puts those of more than ten numbers into a weight file, which is not that of the package
that a piece is stamped into. Here they become values in the program itself.
"""

from collections.abc import Collection

from mlprogram.package.reader import Package

__all__ = ["inline_constants"]


def inline_constants(operations: list, package: Package, parameters: Collection[str]) -> None:
    """Give constants (MIL_pb2.Operation) their values, but for those named in `parameters`."""
    from coremltools.converters.mil.backend.mil import helper

    constants = {
        operation.name: operation.inputs["val"][0]
        for operation in package.functions["main"].operations()
        if operation.type == "const" and operation.name not in parameters
    }
    for operation in operations:
        constant = constants.get(operation.outputs[0].name) if operation.outputs else None
        if constant is not None and constant.blob:
            value = helper.create_tensor_value(constant.array())
            operation.attributes["val"].CopyFrom(value)
