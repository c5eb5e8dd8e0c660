"""Read a LoRA adapter as PEFT writes it: a folder with two files.

    adapter_config.json          r, lora_alpha, use_rslora, target_modules and many switches
    adapter_model.safetensors    base_model.model.NAME.lora_A.weight (r, C_in) and lora_B.weight
                                 (C_out, r) of each matrix NAME of the model

An adapter adds scale * B (A x) to a matrix's result; the scale is lora_alpha / r, with use_rslora
lora_alpha / sqrt(r). Whatever else an adapter can be is refused by the name of its field.

References: huggingface/peft, src/peft/tuners/lora/config.py and layer.py; rank-stabilised LoRA
(arXiv 2312.03732).
"""

from dataclasses import dataclass
import math
from pathlib import Path
import re

from ane_book.errors import InvalidWeights, UnsupportedModel, WeightsNotFound, first_fault
from ane_book.weights.quantised.stored import FLOATS
from ane_book.weights.safetensors import open_safetensors
from ane_book.weights.source import read_json
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")

#: Fields that are of training, of which layers were trained, or of fields that are refused.
UNUSED = {
    "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
    "peft_version", "lora_dropout", "target_modules", "exclude_modules", "layers_to_transform",
    "layers_pattern", "eva_config", "loftq_config", "megatron_core", "qalora_group_size",
}  # fmt: skip

#: Field -> its values with which an adapter is plain LoRA and the model's own weights stay.
PLAIN = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
}


class _Config(BaseModel):
    """The fields of adapter_config.json that say what an adapter computes."""

    model_config = ConfigDict(strict=True)

    r: int = Field(gt=0, le=1 << 16)
    lora_alpha: float = Field(allow_inf_nan=False)
    use_rslora: bool = False


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter as it is stored.

    scale: what B (A x) is multiplied by. pairs: A (r, C_in) and B (C_out, r), float32, by the name
    of the matrix, such as model.layers.0.self_attn.q_proj.
    """

    place: str
    r: int
    scale: float
    pairs: dict[str, tuple[np.ndarray, np.ndarray]]


def read_peft(folder: str | Path) -> PeftAdapter:
    """Read an adapter's folder.

    Raises WeightsNotFound, InvalidWeights or, for what is more than LoRA, UnsupportedModel.
    """
    folder = Path(folder)
    for name in (CONFIG, TENSORS):
        if not (folder / name).exists():
            raise WeightsNotFound(
                f"{folder}: {name} is missing; an adapter is the folder that PEFT's "
                "save_pretrained writes, with safetensors"
            )
    config = _config(folder / CONFIG)
    pairs = _pairs(folder / TENSORS, config.r)
    scale = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    return PeftAdapter(str(folder), config.r, scale, pairs)


def _config(path: Path) -> _Config:
    fields = read_json(path)
    fields.setdefault("peft_type", "none")  # which PEFT always writes
    for name in sorted(fields.keys() - UNUSED - {*_Config.model_fields}):
        if fields[name] and fields[name] not in PLAIN.get(name, ()):
            raise UnsupportedModel(
                f"{path}: {name:.60} = {fields[name]!r:.60} is not supported: LoRA is here B (A x) "
                "beside whole matrices that stay as they are; merge the adapter into the weights "
                "and convert those"
            )
    try:
        return _Config.model_validate(fields)
    except ValidationError as error:
        raise InvalidWeights(f"{path}: {first_fault(error)}") from None


def _pairs(path: Path, r: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A and B by the matrix's name; raises unless there are some, each with both, of rank r."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with open_safetensors(path) as file:
        for key in file.keys():  # noqa: SIM118 - a handle, not a dict
            match, dtype = NAME.fullmatch(key), file.get_slice(key).get_dtype()
            if match is None or dtype not in FLOATS:
                raise UnsupportedModel(
                    f"{path}: tensor {key[:100]} of type {dtype} is no A or B of a matrix"
                )
            found.setdefault(match[1], {})[match[2]] = file.get_tensor(key).float().numpy()
    if not found:
        raise InvalidWeights(f"{path}: has no tensors; get it again")
    for name, own in found.items():
        shapes = {which: array.shape for which, array in own.items()}
        whole = own.keys() == {"A", "B"} and all(len(shape) == 2 for shape in shapes.values())
        if not whole or shapes["A"][0] != r or shapes["B"][1] != r:
            raise InvalidWeights(
                f"{path}: {name[:100]} has {shapes}; needed are A ({r}, in) and B (out, {r})"
            )
    return {name: (own["A"], own["B"]) for name, own in found.items()}
