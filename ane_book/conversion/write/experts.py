"""A mixture of experts as programs: each expert is one, and trunks are what is around them.

The block is lowered without its experts: their output becomes an input `y`, and their inputs, `x`
and the `gates`, become outputs. It is then cut there: the ops that these outputs need come before
the experts, the others behind. With L layers there are L + 1 trunks; trunk j has what is behind the
experts of layer j - 1, and what is before those of layer j.

Letters: C hidden size, E experts, T tokens of a call.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ane_book.conversion.quantize.schemes import Scheme
from ane_book.conversion.write.lowering import LoweredBlock, lower
from ane_book.conversion.write.norms import operands
from ane_book.conversion.write.program import PackageWriter
from ane_book.layout import LAYOUTS, CallShape
from ane_book.models import find
from ane_book.models.base.layers import Attention
from ane_book.models.base.lora import slot_rows
from ane_book.models.base.projection import Slotted
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Parted:
    """A lowered block cut at its mixture, and one lowered expert."""

    before: LoweredBlock
    behind: LoweredBlock
    expert: LoweredBlock

    @property
    def held(self) -> tuple[str, ...]:
        """The block's names of the values that bypass the experts."""
        return tuple(name for name in self.before.outputs if name in self.behind.inputs)

    def names(self, layer: int) -> dict[str, str]:
        """The names of `held` values between two packages: block's name -> package's name."""
        return {value: f"layer{layer}_held_{i}" for i, value in enumerate(self.held)}


@dataclass(frozen=True)
class Pieces:
    """The lowered modules of one function.

    blocks: whole ones, by kind. parted: those cut at their experts, by kind. ends: the modules
    before all layers ("first") and after them ("last"), where there are any.
    """

    call: CallShape
    blocks: dict[str, LoweredBlock] = field(default_factory=dict)
    parted: dict[str, Parted] = field(default_factory=dict)
    ends: dict[str, LoweredBlock] = field(default_factory=dict)

    def add(self, config: Any, kind: str, slots: dict[str, Tensor]) -> None:
        """Lower the model's block of a kind; slots: inputs for an adapter, where it has them."""
        architecture = find(config.architecture)
        signature = architecture.signature(config, kind)
        with torch.device("meta"):  # no memory for parameters, whose values `lower` makes up
            block = architecture.block(config, kind)
        for module in block.modules():
            if isinstance(module, Attention) and self.call.layout == LAYOUTS["apple"]:
                module.form = "apple"
        inputs = {"hidden": torch.zeros(1, config.hidden_size, 1, self.call.tokens)}
        for name, given in signature.arguments.items():
            inputs[name] = torch.zeros(given.shape(self.call))
        outputs, epsilon = ["hidden_out", *signature.results(self.call)], config.norm_epsilon
        if slots:
            slotted = Slotted(block, slot_rows(config))
            self.blocks[kind] = inner(lower(slotted, inputs | slots, outputs, epsilon))
        elif signature.mixture and signature.mixture.apart:
            hidden, outside = inputs["hidden"], [*outputs, "x", "gates"]
            one = {"x": hidden, "gate": torch.zeros(1, 1, 1, self.call.tokens)}
            expert = lower(block.get_submodule("mixture.groups.0"), one, ["y"], epsilon)
            whole = lower(_Outside(block), {"y": hidden} | inputs, outside, epsilon)
            self.parted[kind] = Parted(*_cut(inner(whole)), expert)
        else:
            self.blocks[kind] = lower(block, inputs, outputs, epsilon)

    @property
    def layers(self) -> list[LoweredBlock]:
        """Every lowered block of the layers, whole or a part."""
        parts = [(each.before, each.behind, each.expert) for each in self.parted.values()]
        return [*self.blocks.values(), *chain.from_iterable(parts)]


class _Outside(nn.Module):
    """A block without its experts: takes their output as `y`, and also returns their inputs."""

    def __init__(self, block: nn.Module):
        super().__init__()
        del block.mixture  # a module, in whose place comes a function
        self.block = block

    def forward(self, y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        given: list[Tensor] = []

        def mixture(x: Tensor, gates: Tensor) -> Tensor:
            given.extend((x, gates))
            return y

        vars(self.block)["mixture"] = mixture
        results = self.block(*inputs)
        return (*(results if isinstance(results, tuple) else (results,)), *given)


def inner(piece: LoweredBlock) -> LoweredBlock:
    """The lowered module `block` of a module that wraps it: parameters under their own names."""
    own = {name: ours.removeprefix("block.") for name, ours in piece.parameters.items()}
    return replace(piece, parameters=own)


def _cut(piece: LoweredBlock) -> tuple[LoweredBlock, LoweredBlock]:
    """Cut a block: what all results but the first need, and the rest."""
    needed, ours, others = set(piece.outputs[1:]), [], []
    for operation in reversed([o for o in piece.operations if o.type != "const"]):
        if needed & {v.name for v in operation.outputs}:
            needed |= {v for key in operation.inputs for v in operands(operation, key)}
            ours.append(operation)
        else:
            others.append(operation)
    if "y" in needed:
        raise RuntimeError("what experts are given depends on what they say")
    behind = _stretch(piece, others[::-1], piece.outputs)
    if odd := behind.inputs.keys() & piece.inputs.keys() - {"y"}:
        raise RuntimeError(f"what is behind the experts takes {sorted(odd)} of the block")
    return _stretch(piece, ours[::-1], {*piece.outputs, *behind.inputs}), behind


def _stretch(piece: LoweredBlock, operations: list, leaving: Collection[str]) -> LoweredBlock:
    """Some ops of a block with the constants that they take; leaving: values that may leave it."""
    constants = {o.outputs[0].name: o for o in piece.operations if o.type == "const"}
    shapes = piece.inputs | {v.name: _shape(v) for o in piece.operations for v in o.outputs}
    made = dict.fromkeys(v.name for o in operations for v in o.outputs)
    # Keys sorted: a map of protobuf has another order in every process.
    keys = ((o, key) for o in operations for key in sorted(o.inputs))
    used = dict.fromkeys(value for o, key in keys for value in operands(o, key))
    return LoweredBlock(
        operations=[constants[name] for name in used if name in constants] + operations,
        inputs={n: shapes[n] for n in used if n not in constants and n not in made},
        outputs=tuple(name for name in made if name in leaving),
        parameters={n: piece.parameters[n] for n in used if n in piece.parameters},
    )


def _shape(value) -> tuple[int, ...]:
    return tuple(size.constant.size for size in value.type.tensorType.dimensions)


def write_expert(
    path: Path,
    scheme: Scheme,
    pieces: dict[str, Parted],
    layer: int,
    expert: int,
    state: dict[str, Tensor],
) -> None:
    """Write the package of one expert of a layer; `decode` of expert 3 is called `decode_3`.

    An expert takes `x` (1, C, 1, T) and its `gate` (1, 1, 1, T), and gives `y` (1, C, 1, T).
    pieces: the block, by function. state: the block's state dict.
    """
    package, own = PackageWriter(path), f"mixture.groups.{expert}."
    weights = {n.removeprefix(own): value for n, value in state.items() if n.startswith(own)}
    stored = package.write_weights(weights, scheme)
    for name, parted in pieces.items():
        function, piece = package.function(f"{name}_{expert}"), parted.expert
        feeds = {n: function.input(n, "fp16", shape) for n, shape in piece.inputs.items()}
        function.finish(function.stamp(piece, f"expert{expert}", feeds, stored, {"y": "y"}))
    default = f"{next(iter(pieces))}_{expert}"
    package.finish(default, f"Layer {layer}, expert {expert}, made by ane-book")
