"""A LoRA adapter in the slots of a bundle (`--lora-slots`): what the host gives to every call.

A and B are inputs and no states: with the host's cache a program has no states, with the cache in
states it has two, and more are said to fail (claim `state-count`). An input also changes with the
next call, whatever tier or session it is of. The price is that every call takes the bytes anew,
which `ane-book plan` says.

Letters: C_in and C_out a matrix's columns and rows; n layers of a package; P matrices of a slot, R
rank of a slot, r <= R that of an adapter.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ane_book.bundle import Bundle
from ane_book.bundle.parts import Adapters, Part
from ane_book.errors import InvalidInput, InvalidWeights
import numpy as np

if TYPE_CHECKING:
    from ane_book.weights.peft import PeftAdapter


HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in the slots of one bundle.

    arrays: by package, its inputs by name, float32, with B times the adapter's scale. seal: of the
    bundle. fingerprint: sha256 of its pairs.
    """

    place: str
    seal: str
    arrays: dict[str, dict[str, np.ndarray]]
    fingerprint: str


def read_adapter(folder: str | Path | Adapter, bundle: Bundle) -> Adapter:
    """Read a PEFT adapter for a bundle's slots, padded with zeros to their rank; one that was read
    already is taken as it is.

    Raises InvalidInput where they have no room for it, or it was read for another bundle,
    InvalidWeights where it belongs to another model, and what `ane_book.weights.peft.read_peft`
    raises.
    """
    if isinstance(folder, Adapter):
        if folder.seal != bundle.manifest.seal:
            raise InvalidInput(f"{folder.place}: was read for another bundle than {bundle.path}")
        return folder
    slots = bundle.manifest.adapters
    if slots is None:
        raise InvalidInput(
            f"{bundle.path}: was converted without slots for an adapter such as {folder}; convert "
            "the model again with lora_slots (--lora-slots), at least the adapter's r"
        )
    from ane_book.weights.peft import read_peft  # safetensors and torch, which running needs not

    found = read_peft(folder)
    if found.r > slots.rank:
        raise InvalidInput(
            f"{found.place}: r {found.r} is more than the {slots.rank} of the bundle's slots; "
            f"convert the model again with lora_slots {found.r} (--lora-slots {found.r})"
        )
    _check(found, bundle)
    arrays = {part.package: _filled(found, slots, part) for part in bundle.manifest.shards}
    digest = sha256()
    for name, (a, b) in sorted(found.pairs.items()):
        digest.update(name.encode() + a.tobytes() + (b * np.float32(found.scale)).tobytes())
    return Adapter(found.place, bundle.manifest.seal, arrays, digest.hexdigest())


def _check(found: "PeftAdapter", bundle: Bundle) -> None:
    """Raise InvalidWeights for a pair that no slot takes, or that does not fit half precision."""
    slots, layers = bundle.manifest.adapters, max(p.span.stop for p in bundle.manifest.shards)
    assert slots is not None, "the caller has looked"
    places = {
        f"{slots.layers}.{layer}.{target.module}": (target.rows, slot.inputs)
        for layer in range(layers)
        for slot in slots.slots.values()
        for target in slot.targets
    }
    for name, (a, b) in found.pairs.items():
        fits = b.shape[0], a.shape[1]
        if name not in places:
            raise InvalidWeights(
                f"{found.place}: {name[:100]} has no slot in {bundle.path}: slots are those of "
                f"{', '.join(t.module for s in slots.slots.values() for t in s.targets)} in "
                f"{layers} layers"
            )
        if places[name] != fits:
            raise InvalidWeights(
                f"{found.place}: {name} is of a matrix {fits}, and {bundle.path} has "
                f"{places[name]}: the adapter is of another model"
            )
        largest_a, largest_b, scale = (float(np.abs(n).max()) for n in (a, b, found.scale))
        # Not "greater than": a NaN is no number either. The scale, too: B may be zeros.
        if not all(number <= HALF for number in (largest_a, largest_b * scale, scale)):
            raise InvalidWeights(f"{found.place}: {name} has numbers that fp16 does not hold")


def _filled(found: "PeftAdapter", slots: Adapters, part: Part) -> dict[str, np.ndarray]:
    """The inputs of a package: zeros, and in them the pairs of its layers."""
    arrays = {n: np.zeros(shape, np.float32) for n, shape in slots.shapes(len(part.span)).items()}
    for i, layer in enumerate(part.span):
        for name, slot in slots.slots.items():
            row = 0
            for p, target in enumerate(slot.targets):
                pair = found.pairs.get(f"{slots.layers}.{layer}.{target.module}")
                if pair is not None:
                    (a, b), first = pair, p * slots.rank
                    arrays[f"{name}_a"][i, first : first + found.r, 0] = a
                    arrays[f"{name}_b"][i, row : row + target.rows, 0, : found.r] = b * np.float32(
                        found.scale
                    )
                row += target.rows
    return arrays
