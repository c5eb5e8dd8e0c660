"""Slots for a LoRA adapter: y = W x + B (A x), where A and B are inputs of the program.

Every projection of a dense decoder's block has a slot of rank R. A projection stacks one or more
matrices of the checkpoint (q, k and v are one), each of which an adapter may have a pair for. So a
slot has the pairs' A below each other, (P*R, 1, C_in) of P matrices, and their B, (C_out, 1, R). An
adapter of a lower rank has zeros in the rest of it, and zeros everywhere are no adapter: y + 0.

Letters: see `ane_book.models.base`; P matrices in a projection, R rank of a slot.

Reference: Hu et al. 2021, "LoRA" (arXiv 2106.09685), section 4.1.
"""

from ane_book.errors import InvalidInput
from ane_book.models import find
from ane_book.models.base.architecture import Shape, TensorSpec
from ane_book.models.base.config import ModelConfig

#: The projections with a slot: the name of the slot, and the block's module.
PROJECTIONS = {
    "qkv": "attention.qkv",
    "out": "attention.out",
    "gate_up": "feed_forward.gate_up",
    "down": "feed_forward.down",
}


def targets(config: ModelConfig) -> dict[str, tuple[TensorSpec, ...]]:
    """The checkpoint's matrices that each projection stacks, by the slot's name.

    Raises InvalidInput for a model whose layers have other projections, or rows in another order.
    """
    architecture = find(config.architecture)
    kinds = [architecture.parameters(config, kind) for kind in {*architecture.kinds(config)}]
    names = {slot: f"{module}.weight" for slot, module in PROJECTIONS.items()}
    alike = {tuple(map(parameters.get, names.values())) for parameters in kinds}
    if len(alike) > 1 or None in next(iter(alike)):
        raise InvalidInput(
            f"lora_slots goes with dense decoders, and {config.architecture} models are none, or "
            "their layers differ: merge the adapter into the weights instead"
        )
    found = {slot: kinds[0][name] for slot, name in names.items()}
    if any(part.pairs for parts in found.values() for part in parts):
        raise InvalidInput(
            f"lora_slots: rows of {config.architecture} models are put in another order, which the "
            "rows of an adapter are not: merge the adapter into the weights instead"
        )
    return found


def slot_rows(config: ModelConfig) -> dict[str, list[int]]:
    """The rows of each matrix that a projection stacks, by the projection's module, in order."""
    return {PROJECTIONS[n]: [part.shape[0] for part in own] for n, own in targets(config).items()}


def slot_shapes(config: ModelConfig, R: int) -> dict[str, Shape]:
    """The shapes of a layer's A and B by their inputs' names, in order: `qkv_a`, `qkv_b`, ...;
    {} for rank 0, of any model."""
    shapes: dict[str, Shape] = {}
    for slot, parts in (targets(config) if R else {}).items():
        outputs, inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
        shapes |= {f"{slot}_a": (len(parts) * R, 1, inputs), f"{slot}_b": (outputs, 1, R)}
    return shapes
