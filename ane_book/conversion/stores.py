"""What a package keeps: a state, or an input and an output, for all its layers together.

With kv="state" caches and memory are states. Tails are kept by the host in both cases: more than
two states are reported to fail (claim `state-count`), and a host that has all columns can go back
to any token. For the sake of the same limit, keys and values are one state `cache`, keys first,
where there is another beside them.
"""

from ane_book.layout import Store, Tail
from ane_book.models.base.signature import Signatures

STATES = 2  # the most of a package: more are reported to fail (claim `state-count`)


def stores(signatures: Signatures, layers: range, kv: str) -> dict[Store, list[tuple[int, str]]]:
    """What a package of these layers keeps, with the layer of each part and the block's name."""
    held = {
        name: [(layer, name) for layer in own] for name, own in signatures.holders(layers).items()
    }
    kinds = signatures.kept
    states = [name for name in held if kv == "state" and not isinstance(kinds[name], Tail)]
    if len(states) > STATES:
        joined = {
            name.replace("keys", "cache"): held.pop(name) + held.pop(name.replace("keys", "values"))
            for name in [own for own in held if own.startswith("keys")]
        }
        held = joined | held
    return {
        Store(name, kind, len(parts), kv == "state" and not isinstance(kind, Tail)): parts
        for name, parts in held.items()
        for kind in [kinds[parts[0][1]]]
    }
