"""Weights that checkpoints for other engines hold in four or eight bits, as numbers again.

    form   tensors of a matrix W (out, in)                                   W[o, i]
    FP8    weight F8_E4M3 (out, in) with weight_scale_inv, one of each block,
           or weight_scale, one of all or (out, 1)                            weight[o, i] * scale
    GPTQ   qweight int32 (in / n, out), qzeros int32 (G, out / n),
           scales (G, out), g_idx (in,), the group g of a column              s[g, o] (q - zero - 1)
    AWQ    qweight int32 (in, out / n), qzeros int32 (G, out / n),
           scales (G, out), g = i / (in / G)                                  s[g, o] (q - zero)

An int32 holds n = 32 / bits numbers, the first in its lowest bits; AWQ's eight are in another
order. GPTQ's zeros are one too small, except in `checkpoint_format` "gptq_v2". The model that comes
of it is the quantised one: what was rounded stays rounded. What is packed otherwise is refused by
its form's name.

References: github.com/ModelCloud/GPTQModel; github.com/casper-hansen/AutoAWQ (packing_utils); the
configuration `weight_block_size` of huggingface.co/docs/transformers (finegrained_fp8).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.models.base.architecture import Shape
import numpy as np

__all__ = ["PackedWeight", "packed_weights"]

#: How names of tensors end that are packed in a form which is not read, and the form.
REFUSED = {
    "_blocks": "MXFP4", ".weight.absmax": "bitsandbytes' 4 bits", ".SCB": "bitsandbytes' 8 bits",
    ".weight_packed": "compressed-tensors' packed integers",
}  # fmt: skip
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AWQ: the column of each four bits, from the lowest
BLOCK = (128, 128)  # rows and columns of an FP8 block, where the configuration does not say


@dataclass(frozen=True)
class PackedWeight:
    """A matrix (out, in), by the names of its tensors in the order of its form.

    form: "fp8", "gptq" or "awq". settings: `quantization_config`. place: for errors.
    """

    form: str
    parts: tuple[str, ...]
    settings: dict
    place: str

    def shape(self, shape_of: Callable[[str], Shape]) -> Shape:
        """(out, in), from the shapes of the tensors."""
        first = shape_of(self.parts[0])
        if self.form == "fp8" or len(first) != 2:
            return first
        rows, columns = first
        return (columns, rows * self._each) if self.form == "gptq" else (columns * self._each, rows)

    def read(self, get: Callable[[str], np.ndarray]) -> np.ndarray:
        """The matrix (out, in) float32. Raises InvalidWeights where its tensors do not fit."""
        tensors = [get(name) for name in self.parts]
        make = {"fp8": self._fp8, "gptq": self._gptq, "awq": self._awq}[self.form]
        try:
            return np.ascontiguousarray(make(*tensors), np.float32)
        except (ValueError, IndexError) as error:
            shapes = ", ".join(f"{n} {t.shape}" for n, t in zip(self.parts, tensors, strict=True))
            raise InvalidWeights(f"{self.place}: {shapes} do not fit together: {error}") from None

    @property
    def _each(self) -> int:
        """Numbers of an int32."""
        return 32 // self.settings.get("bits", 4)

    def _fp8(self, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
        if self.parts[1].endswith("_inv"):
            rows, columns = self.settings.get("weight_block_size") or BLOCK
            wide = scale.repeat(rows, axis=0).repeat(columns, axis=1)
            return weight * wide[: weight.shape[0], : weight.shape[1]]
        return weight * (scale if scale.size > 1 else scale.reshape(()))

    def _gptq(self, weight: np.ndarray, zeros: np.ndarray, scale: np.ndarray, group: np.ndarray):
        q = self._unpacked(weight.T).T  # (in, out)
        late = self.settings.get("checkpoint_format") != "gptq_v2"
        zero = self._unpacked(zeros) + late
        return ((q - zero[group]) * scale[group]).T

    def _awq(self, weight: np.ndarray, zeros: np.ndarray, scale: np.ndarray) -> np.ndarray:
        back = np.argsort(ORDER)

        def ordered(packed: np.ndarray) -> np.ndarray:
            q = self._unpacked(packed)
            return q.reshape(len(q), -1, len(ORDER))[:, :, back].reshape(q.shape)

        group = np.arange(len(weight)) // (len(weight) // len(scale))
        return ((ordered(weight) - ordered(zeros)[group]) * scale[group]).T

    def _unpacked(self, packed: np.ndarray) -> np.ndarray:
        """The numbers of int32 (r, c) as int32 (r, c * n)."""
        bits = 32 // self._each
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        wide = np.ascontiguousarray(packed).view(np.uint32)[..., None] >> shifts
        return (wide & (2**bits - 1)).astype(np.int32).reshape(len(packed), -1)


def packed_weights(names: Iterable[str], config: dict, place: str) -> dict[str, PackedWeight]:
    """The matrices that are packed, by the names they have unpacked; raises UnsupportedModel.

    config: of config.json. place: of the checkpoint, for errors.
    """
    known, found = set(names), {}
    given = config.get("quantization_config")
    settings = given if isinstance(given, dict) else {}
    for name in sorted(known):
        for ending, form in REFUSED.items():
            if name.endswith(ending):
                raise UnsupportedModel(
                    f"{place}: tensor {name} is packed as {form}, which is not read; get the "
                    "model's weights in 16 bits, and compress them with --quant"
                )
        base, _, last = name.rpartition(".")
        if last in ("weight_scale_inv", "weight_scale"):
            parts = (f"{base}.weight", name)
            found[parts[0]] = PackedWeight("fp8", parts, settings, place)
        elif last == "qweight":
            form = _integers(settings, name, place)
            more = ("qzeros", "scales", "g_idx")[: 3 if form == "gptq" else 2]
            parts = (name, *(f"{base}.{each}" for each in more))
            found[f"{base}.weight"] = PackedWeight(form, parts, settings, place)
    for packed in found.values():
        if missing := [part for part in packed.parts if part not in known]:
            raise InvalidWeights(f"{place}: {packed.parts[-1]} is there without {missing[0]}")
    return found


def _integers(settings: dict, name: str, place: str) -> str:
    """The form of packed integers, "gptq" or "awq"; raises UnsupportedModel."""
    form, bits = settings.get("quant_method"), settings.get("bits", 4)
    version = str(settings.get("version", "gemm")).lower()
    if (form, bits) in (("gptq", 4), ("gptq", 8)) or (form, bits, version) == ("awq", 4, "gemm"):
        return form
    raise UnsupportedModel(
        f"{place}: tensor {name} is packed by {form!r} in {bits!r} bits ({version}); of packed "
        "integers GPTQ in 4 or 8 bits and AWQ in 4 (gemm) are read"
    )
