"""Check the order of a bundle's packages: layer after layer, each one's experts after its gates."""

from collections.abc import Iterable, Set

from ane_book.bundle.parts import Part


def check_order(parts: list[Part], files: Iterable[str], ends: Set[str]) -> None:
    """Check that no package is left out and layers come in order; raises ValueError.

    A package may have an asset of Core AI beside it: head.mlpackage, head.aimodel.
    ends: outputs of which one ends a range of layers, unless experts follow.
    """
    packages = {part.package for part in parts}
    packages |= {f"{name.removesuffix('.mlpackage')}.aimodel" for name in packages}
    if left := {name.split("/")[0] for name in files if "/" in name} - packages:
        raise ValueError(f"{min(left)} is among the files, but is no part of the model")
    layer, mixed, ended = 0, False, True
    for part in (part for part in parts if part.part == "layers"):
        if part.layers is None:
            raise ValueError(f"{part.package} says of no layers that it has them")
        first, last = part.layers
        if first != layer or last < first + (not mixed):  # what is behind experts may end it all
            raise ValueError(f"{part.package}, layers {first} to {last}, is out of order")
        given = [f.outputs.keys() for f in part.functions.values()]
        mixed, ended = (all(own & names for own in given) for names in ({"gates"}, ends))
        layer = last if ended or mixed else layer
    if not ended:
        raise ValueError(f"no part ends layer {layer} by giving hidden_out")


def check_experts(parts: list[Part]) -> None:
    """Check that gates are followed by as many experts, in order; raises ValueError."""
    number = count = 0
    layers: tuple[int, int] | None = None
    for part in [*parts, None]:
        if part and part.part == "experts":
            if (part.expert, part.layers) != (number, layers) or number == count:
                raise ValueError(
                    f"{part.package}, expert {part.expert} of layers {part.layers}, is out of "
                    f"order; expected: {number} of {count}, of layers {layers}"
                )
            number += 1
            continue
        if number != count:
            raise ValueError(f"layers {layers} have {number} experts, and gates for {count}")
        if part:
            gates = [f.outputs.get("gates") for f in part.functions.values()]
            sizes = {(*gate.shape, 0, 0)[1] if gate else 0 for gate in gates}
            number, count, layers = 0, max(sizes), part.layers
            if len(sizes) > 1:
                raise ValueError(f"{part.package}: functions with gates for {sorted(sizes)}")
