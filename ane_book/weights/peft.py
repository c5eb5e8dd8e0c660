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
from ane_book.weights.source import read_json
from mlprogram.files import check_file
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
DTYPES = ("F32", "F16", "BF16")  # safetensors' names

#: Fields that are of training, or of fields that are refused.
UNUSED = {
    "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
    "peft_version", "lora_dropout", "layers_pattern", "eva_config", "loftq_config",
    "megatron_core", "qalora_group_size",
}  # fmt: skip

#: Fields that make of an adapter something else than B (A x) on whole matrices, and what they do.
SWITCHES = {
    "use_dora": "DoRA also scales the columns of the merged weight",
    "use_qalora": "QA-LoRA pools the input",
    "use_bdlora": "B and A are block-diagonal",
    "lora_bias": "B has a bias",
    "fan_in_fan_out": "weights are stored transposed",
    "modules_to_save": "whole modules were trained beside the adapter",
    "trainable_token_indices": "rows of the embedding were trained",
    "target_parameters": "parameters that are no module's weight were trained",
    "layer_replication": "the model has copies of layers",
    "rank_pattern": "matrices have ranks of their own",
    "alpha_pattern": "matrices have scales of their own",
    "alora_invocation_tokens": "the adapter begins at a token of the prompt",
    "use_mblora": "several adapters are mixed",
}
#: Values of init_lora_weights with which the weights of the model stay as they were.
INITS = (True, False, None, "gaussian", "eva", "orthogonal")


class _Config(BaseModel):
    """The fields of adapter_config.json that say what an adapter computes."""

    model_config = ConfigDict(strict=True)

    peft_type: str
    r: int = Field(gt=0, le=1 << 16)
    lora_alpha: float = Field(allow_inf_nan=False)
    use_rslora: bool = False
    bias: str = "none"
    target_modules: list[str] | str
    layers_to_transform: list[int] | int | None = None
    exclude_modules: list[str] | str | None = None
    init_lora_weights: bool | str | None = True


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
    _check_targets(folder, config, pairs)
    scale = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    return PeftAdapter(str(folder), config.r, scale, pairs)


def _config(path: Path) -> _Config:
    fields = read_json(path)
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{path}: peft_type {kind!r:.40} is not supported; LORA is")
    others = fields.keys() - UNUSED - {*_Config.model_fields}
    for name in sorted(name for name in others if fields[name]):
        does = SWITCHES.get(name, "what it does to the adapter is not known here")
        raise UnsupportedModel(
            f"{path}: {name:.60} = {fields[name]!r:.60} is not supported ({does}); merge the "
            "adapter into the weights and convert those"
        )
    try:
        config = _Config.model_validate(fields)
    except ValidationError as error:
        raise InvalidWeights(f"{path}: {first_fault(error)}") from None
    if config.bias != "none":
        raise UnsupportedModel(
            f"{path}: bias = {config.bias!r:.40} is not supported: the model's biases were "
            "trained; merge the adapter into the weights and convert those"
        )
    if config.init_lora_weights not in INITS:
        raise UnsupportedModel(
            f"{path}: init_lora_weights = {config.init_lora_weights!r:.40} is not supported: it "
            "changes the model's own weights; save the adapter as PEFT converts it to plain LoRA"
        )
    return config


def _pairs(path: Path, r: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A and B by the matrix's name; raises unless every one has both, of rank r."""
    check_file(path)
    found: dict[str, dict[str, np.ndarray]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - a handle, not a dict
                match, dtype = NAME.fullmatch(key), file.get_slice(key).get_dtype()
                if match is None or dtype not in DTYPES:
                    raise UnsupportedModel(
                        f"{path}: tensor {key[:100]} of type {dtype} is no A or B of a matrix"
                    )
                found.setdefault(match[1], {})[match[2]] = file.get_tensor(key).float().numpy()
    except (SafetensorError, OSError) as error:
        raise InvalidWeights(
            f"{path}: cut short or not a safetensors file ({error}); get it again"
        ) from None
    for name, own in found.items():
        shapes = {which: array.shape for which, array in own.items()}
        whole = own.keys() == {"A", "B"} and all(len(shape) == 2 for shape in shapes.values())
        if not whole or shapes["A"][0] != r or shapes["B"][1] != r:
            raise InvalidWeights(
                f"{path}: {name[:100]} has {shapes}; needed are A ({r}, in) and B (out, {r})"
            )
    return {name: (own["A"], own["B"]) for name, own in found.items()}


def _check_targets(folder: Path, config: _Config, pairs: dict) -> None:
    """Raise InvalidWeights where the matrices are not those that the configuration names."""
    for name in pairs:
        if _is_left_out(name, config):
            raise InvalidWeights(
                f"{folder / TENSORS}: has A and B of {name[:100]}, which is not among the layers "
                f"and modules of {CONFIG}"
            )
    listed = config.target_modules
    if isinstance(listed, str):  # an expression, whose matrices are those that the file has
        if not pairs:
            raise InvalidWeights(f"{folder / TENSORS}: has no tensors; get it again")
        return
    names = {target: [n for n in pairs if f".{n}".endswith(f".{target}")] for target in listed}
    for target, own in names.items():
        if not own:
            raise InvalidWeights(
                f"{folder / TENSORS}: has no A and B of {target[:60]}, which {CONFIG} has among "
                "target_modules; get it again"
            )
    if others := pairs.keys() - {name for own in names.values() for name in own}:
        raise InvalidWeights(
            f"{folder / TENSORS}: {CONFIG} does not have {min(others)[:100]} among target_modules"
        )
    counts = {len(own) for target, own in names.items() if "." not in target}
    if len(counts) > 1 and config.layers_to_transform is config.exclude_modules is None:
        raise InvalidWeights(
            f"{folder / TENSORS}: not every layer has A and B of all target_modules; get it again"
        )


def _is_left_out(name: str, config: _Config) -> bool:
    """Whether layers_to_transform or a list exclude_modules leaves a matrix out."""
    layers, excluded = config.layers_to_transform, config.exclude_modules
    layers = [layers] if isinstance(layers, int) else layers
    if isinstance(excluded, list) and any(f".{name}".endswith(f".{own}") for own in excluded):
        return True
    if not layers:
        return False
    number = re.search(r"\.(\d+)\.", name)
    return number is None or int(number[1]) not in layers
