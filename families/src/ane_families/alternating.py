"""`Alternating`, the base class of dense decoders whose layers differ in what a token attends to.

    FULL        rotated; a token attends to all tokens before it
    SLIDING     rotated; it attends to the last `sliding_window` of them
    UNROTATED   it attends to all, and no position is rotated into queries and keys

The block is the same for all three, and only the host's tables and masks differ. A layer without
rotation gets a table whose angles are zero: it multiplies by attention's scale and adds nothing.
That costs five small operations a layer, and spares a second form of the block.

Letters: see `ane_book.models.base`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, TypeVar

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.models.base.architecture import FULL
from ane_book.models.base.config import Count, DecoderConfig, Real, rope_type
from ane_book.models.base.dense import Dense, layer_types
from ane_book.models.base.signature import BlockSignature, attention
from ane_book.rope import Rotary
from pydantic import model_validator

SLIDING = "sliding"
UNROTATED = "unrotated"
TYPES = ("full_attention", "sliding_attention")  # in config.json

#: Kind of layer -> the host's rotary tables and mask.
INPUTS = {FULL: ("rope", "mask"), SLIDING: ("rope", "mask_local"), UNROTATED: ("unrotated", "mask")}


class AlternatingConfig(DecoderConfig):
    """The hyperparameters of a dense decoder with several kinds of layer."""

    layer_types: tuple[str, ...]  # the kind of each layer

    @model_validator(mode="after")
    def _check_window(self) -> "AlternatingConfig":
        if SLIDING in self.layer_types and self.sliding_window is None:
            raise ValueError("layer_types has sliding_attention, but there is no sliding_window")
        return self


OwnAlternating = TypeVar("OwnAlternating", bound=AlternatingConfig)


class Alternating(Dense[OwnAlternating]):
    """A dense decoder whose configuration says of which kind each layer is."""

    Config: ClassVar[type[DecoderConfig]] = AlternatingConfig
    inputs: ClassVar = INPUTS

    def kinds(self, config: OwnAlternating) -> list[str]:
        return list(config.layer_types)

    def signature(self, config: OwnAlternating, kind: str) -> BlockSignature:
        table, mask = self.inputs[kind]
        return attention(config, table, mask)

    def host(self, config: OwnAlternating) -> Host:
        rotary = {"rope": config.rotary}
        masks: dict[str, int | None] = {"mask": None}
        if UNROTATED in config.layer_types:
            rotary["unrotated"] = replace(config.rotary, rotary_dim=0, scaling={})
        if SLIDING in config.layer_types:
            masks["mask_local"] = config.sliding_window
        return Host(rotary=rotary, masks=masks)


class LocalConfig(AlternatingConfig):
    """The hyperparameters of a decoder whose sliding layers have a rotary base of their own."""

    sliding_window: Count
    rope_local_theta: Real  # rotary base of the sliding layers


OwnLocal = TypeVar("OwnLocal", bound=LocalConfig)


class Local(Alternating[OwnLocal]):
    """A decoder whose sliding layers rotate by a base of their own, and without scaling."""

    Config: ClassVar[type[DecoderConfig]] = LocalConfig
    inputs: ClassVar = INPUTS | {SLIDING: ("rope_local", "mask_local")}

    def config(self, fields: dict) -> DecoderConfig:
        return super().config(split_rope(fields, self.model_type))

    def rotary(self, config: OwnLocal) -> Rotary:
        """The rotary embedding of full layers."""
        return config.rotary

    def host(self, config: OwnLocal) -> Host:
        full = self.rotary(config)
        local = replace(full, theta=config.rope_local_theta, scaling={})
        return Host(
            rotary={"rope": full, "rope_local": local},
            masks={"mask": None, "mask_local": config.sliding_window},
        )


def read_kinds(fields: dict, default: Callable[[int], str]) -> list[str]:
    """FULL or SLIDING for each layer, from `layer_types` in config.json or `default(i)`, which is
    one of `TYPES`; raises UnsupportedModel for other types."""
    return [name.removesuffix("_attention") for name in layer_types(fields, TYPES, default)]


def split_rope(fields: dict, model_type: str) -> dict:
    """Rewrite `rope_parameters` by type of layer, as transformers 5 writes them for some families:
    those of full layers stay, and the base of sliding layers becomes `rope_local_base_freq`.

    Raises UnsupportedModel for sliding layers with a rope scaling.
    """
    by_type = fields.get("rope_parameters") or {}
    if not by_type.keys() & set(TYPES):
        return fields
    for name in TYPES:
        if not isinstance(by_type.get(name), dict):
            raise TypeError(f"rope_parameters: {name} is not an object")
    full, local = (by_type[name] for name in TYPES)
    if rope_type(local) != "default":
        raise UnsupportedModel(
            f"config.json: rope_parameters of type {rope_type(local)!r} are not supported for the "
            f"sliding_attention of {model_type} models"
        )
    return fields | {"rope_parameters": full, "rope_local_base_freq": local.get("rope_theta")}
