"""The bytes of memory that a bundle's loaded programs hold on a device: weights, caches, adapter.

The weights are counted twice: once for each package, as if its functions shared them, and once for
each loaded function, as Core ML is reported to hold them (claim `functions-memory`). Both stand in
a plan, since no machine of this project could measure which is true.

Taught in the chapters "From a layer to packages" and "Shipping".
"""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class WiredBytes:
    """What the loaded programs of a plan hold, in bytes.

    shared: the weights, each package once. copied: the weights, once for each of `functions`, all
    functions of all packages, which a session loads. caches: of one conversation in the longest
    cache, kept in states or by the host, with tails and memory. adapter: of the inputs that the
    host keeps for a LoRA adapter. The host's embedding is not in it: it is mapped, and the system
    can drop its pages.
    """

    functions: int
    shared: int
    copied: int
    caches: int
    adapter: int = 0

    @property
    def least(self) -> int:
        """The bytes in all if the functions of a package share its weights."""
        return self.shared + self.caches + self.adapter

    @property
    def most(self) -> int:
        """The bytes in all if every loaded function holds a copy."""
        return self.copied + self.caches + self.adapter

    def numbers(self) -> dict[str, int]:
        """The parts and both sums, for JSON."""
        return {**asdict(self), "least": self.least, "most": self.most}
