"""Write silu without the engine's own: `0.5 x (1 + tanh(x / 2))`, which is `x sigmoid(x)`.

The engine's `silu` is reported to be off by some 0.001 near 0 (claim `silu-small`), and coremltools
makes `x sigmoid(x)` that op again, so what was lowered is rewritten: h = x / 2, then h + h tanh(h).
"""

from ane_book.conversion.write.lowering import LoweredBlock
from mlprogram.package.files import proto
from mlprogram.package.messages import immediate
import numpy as np


def silu_by_tanh(block: LoweredBlock) -> int:
    """Put four ops in the place of each `silu` of a block; returns how many it had."""
    places = [i for i, operation in enumerate(block.operations) if operation.type == "silu"]
    for place in reversed(places):
        block.operations[place : place + 1] = _by_tanh(block.operations[place])
    return len(places)


def _by_tanh(silu) -> list:
    """The ops (mil.Operation) in place of a silu, in fp16; the last has its output's name."""
    mil = proto("MIL_pb2")
    (output,), (given,) = silu.outputs, silu.inputs["x"].arguments
    name = output.name
    half = mil.Operation(type="const")
    half.attributes["val"].CopyFrom(immediate(np.float16(0.5)))
    half.outputs.add(name=f"{name}_half", type=half.attributes["val"].type)

    def op(type_: str, result: str, **operands: str):
        made = mil.Operation(type=type_)
        made.outputs.add(name=result, type=output.type)
        for key, operand in operands.items():
            made.inputs[key].arguments.add(name=operand)
        return made

    made = [
        half,
        op("mul", f"{name}_h", x=given.name, y=f"{name}_half"),
        op("tanh", f"{name}_tanh", x=f"{name}_h"),
        op("mul", f"{name}_bent", x=f"{name}_h", y=f"{name}_tanh"),
        op("add", name, x=f"{name}_h", y=f"{name}_bent"),
    ]
    for each in made:
        each.attributes["name"].CopyFrom(immediate(each.outputs[0].name))
    return made
