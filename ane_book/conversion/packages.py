"""The manifest's entries of what a conversion made: packages, slots for an adapter, what an
encoder's host does."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from ane_book.bundle.parts import (
    Adapters,
    Embedding,
    FunctionSpec,
    Layer,
    Part,
    Slot,
    Tags,
    Target,
    Type,
    Vectors,
    called,
)
from ane_book.conversion.plan import Program
from ane_book.layout import CallShape
from ane_book.models import find
from ane_book.models.base.lora import targets
from ane_book.models.base.signature import MaskInput
from ane_book.options import Recipe
from mlprogram.package.function import Function as Declared
from mlprogram.package.reader import Package


def part_of(folder: Path, program: Program, functions: Mapping[str, CallShape]) -> Part:
    """The manifest's entry of a program's package in a folder."""
    declared, layers = Package(folder / program.package).functions, program.layers
    head = not layers and program.trunk is None
    return Part(
        package=program.package,
        part="head" if head else "layers" if program.expert is None else "experts",
        functions={
            name: FunctionSpec(tokens=call.tokens, slots=call.slots or None, **_types(own))
            for name, call in functions.items()
            for own in [declared[called(name, program.expert)]]
        },
        layers=None if head else (layers.start, layers.stop),
        expert=program.expert,
    )


def _types(function: Declared) -> dict[str, dict[str, Type]]:
    """The types of a function's inputs, states and outputs."""
    return {
        kind: {n: Type(dtype=t.dtype, shape=t.shape) for n, t in getattr(function, kind).items()}
        for kind in ("inputs", "states", "outputs")
    }


def adapters_of(config: Any, R: int) -> Adapters | None:
    """The manifest's entry of slots of rank R; None for 0."""
    if not R:
        return None
    slots = {}
    for name, parts in targets(config).items():
        own = [Target(module=p.name.removesuffix(".weight"), rows=p.shape[0]) for p in parts]
        slots[name] = Slot(inputs=parts[0].shape[1], targets=own)
    return Adapters(rank=R, layers=find(config.architecture).checkpoint(config).layers, slots=slots)


def layers_of(config: Any) -> list[Layer]:
    """The manifest's entries of what layers keep; [] unless the model generates text."""
    architecture = find(config.architecture)
    if architecture.task != "text-generation":
        return []
    signatures, made = architecture.signatures(config), {}
    for kind, own in signatures.kinds.items():
        tables = [name.removesuffix("_cos") for name in own.host if name.endswith("_cos")]
        masks = [name for name, given in own.host.items() if isinstance(given, MaskInput)]
        tensors = chain.from_iterable(architecture.parameters(config, kind).values())
        made[kind] = Layer(
            stores=[*own.keeps],
            rotary=next(iter(tables), None),
            mask=next(iter(masks), None),
            neighbours=any(tensor.pairs for tensor in tensors),
            memory_scale=own.memory_scale,
        )
    return [made[kind] for kind in signatures.names]


def vectors_of(config: Any, recipe: Recipe) -> Vectors | None:
    """The manifest's `vectors`; None unless the model makes vectors of texts."""
    architecture = find(config.architecture)
    if architecture.task != "embedding":
        return None
    positions = None
    if "positions" in architecture.outer(config):
        positions = Embedding(file="positions.npy", shape=(recipe.context, config.hidden_size))
    return Vectors(
        positions=positions,
        pooling=config.pooling,
        causal=architecture.causal,
        prompts=config.prompts,
        default_prompt=config.default_prompt,
        dimensions=config.dimensions,
    )


def tags_of(config: Any) -> Tags | None:
    """The manifest's `tags`; None unless the model labels tokens."""
    if find(config.architecture).task != "token-classification":
        return None
    return Tags(labels=list(config.labels), window=config.sliding_window)
