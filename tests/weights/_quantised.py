"""Checkpoints as quantising tools store them, packed here integer by integer from the layouts that
they publish, and the weights that each packed form stands for.

A packer takes a matrix (out, in) and returns the parts that are stored in its place, by what
follows the module's name, and the matrix that they stand for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from _tiny_weights import edit_json
import numpy as np
from safetensors.torch import load_file, save_file
import torch

Parts = dict[str, torch.Tensor]

GROUP = 16
KEPT = "model.layers.1.mlp.down_proj"  # what every configuration lists as not converted


def halves(array: np.ndarray) -> np.ndarray:
    """Rounded to fp16, as most scales are stored."""
    return array.astype(np.float16).astype(np.float32)


def word(integers: list[int], bits: int) -> int:
    """One int32 that holds integers, the first in its low bits."""
    whole = sum(int(value) << bits * i for i, value in enumerate(integers))
    return whole - (1 << 32) if whole >= 1 << 31 else whole


def along_rows(matrix: np.ndarray, bits: int, order: list[int] | None = None) -> torch.Tensor:
    """Pack runs of each row: (rows, n) -> (rows, n * bits / 32), the last run filled up with 0."""
    count, rows = 32 // bits, []
    for row in matrix.tolist():
        row += [0] * (-len(row) % count)
        runs = [row[i : i + count] for i in range(0, len(row), count)]
        rows.append([word([run[j] for j in order or range(count)], bits) for run in runs])
    return torch.tensor(rows, dtype=torch.int32)


def down_columns(matrix: np.ndarray, bits: int) -> torch.Tensor:
    """Pack runs of each column: (n, columns) -> (n * bits / 32, columns)."""
    return along_rows(matrix.T, bits).T.contiguous()


def grouped(weight: np.ndarray, bits: int, symmetric: bool, groups: np.ndarray):
    """Integers (out, in), scales and zero points (out, G) of groups of inputs."""
    top, count = (1 << bits) - 1, groups.max() + 1
    scale, zero = np.zeros((2, len(weight), count))
    for g in range(count):
        own = weight[:, groups == g]
        if symmetric:
            scale[:, g], zero[:, g] = abs(own).max(1) * 2 / top, (top + 1) // 2
        else:
            low, high = np.minimum(own.min(1), 0), np.maximum(own.max(1), 0)
            scale[:, g] = (high - low) / top
            zero[:, g] = np.rint(-low / scale[:, g]).clip(0, top)
    scale = halves(scale)
    integers = np.rint(weight / scale[:, groups] + zero[:, groups]).clip(0, top).astype(int)
    zero = zero.astype(int)
    stand_for = (integers - zero[:, groups]) * scale[:, groups]
    return integers, scale, zero, stand_for.astype(np.float32)


def turned(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.T.copy())


def awq(weight: np.ndarray) -> tuple[Parts, np.ndarray]:
    groups = np.arange(weight.shape[1]) // GROUP
    integers, scale, zero, stand_for = grouped(weight, 4, False, groups)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {
        "qweight": along_rows(integers.T, 4, order),
        "qzeros": along_rows(zero.T, 4, order),
        "scales": turned(scale).half(),
    }, stand_for


def gptq(
    weight: np.ndarray, *, bits=4, symmetric=False, less=1, shuffled=False
) -> tuple[Parts, np.ndarray]:
    """less: what is taken from a zero point before it is stored. shuffled: act-order."""
    groups = np.arange(weight.shape[1]) // GROUP
    if shuffled:
        groups = np.random.default_rng(3).permutation(groups)
    integers, scale, zero, stand_for = grouped(weight, bits, symmetric, groups)
    stored = zero - less & (1 << bits) - 1
    return {
        "qweight": down_columns(integers.T, bits),
        "qzeros": along_rows(stored.T, bits),
        "scales": turned(scale).half(),
        "g_idx": torch.from_numpy(groups).int(),
    }, stand_for


def packed(
    weight: np.ndarray, *, bits=4, symmetric=True, shuffled=False
) -> tuple[Parts, np.ndarray]:
    """compressed-tensors, "pack-quantized"."""
    groups = np.arange(weight.shape[1]) // GROUP
    if shuffled:
        groups = np.random.default_rng(4).permutation(groups)
    integers, scale, zero, stand_for = grouped(weight, bits, symmetric, groups)
    parts = {
        "weight_packed": along_rows(integers, bits),
        "weight_shape": torch.tensor(weight.shape),
        "weight_scale": torch.from_numpy(scale).half(),
    }
    if not symmetric:
        parts["weight_zero_point"] = down_columns(zero, bits)
    if shuffled:
        parts["weight_g_idx"] = torch.from_numpy(groups).int()
    return parts, stand_for


def eight_bits(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32)).to(torch.float8_e4m3fn)


def fp8(weight: np.ndarray, *, block=None) -> tuple[Parts, np.ndarray]:
    """DeepSeek's: a scale for each block, of which the last ones are smaller, or for all."""
    rows, columns = block or weight.shape
    grid = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
    scale, values = np.zeros(grid, np.float32), np.zeros_like(weight)
    stand_for = np.zeros_like(weight)
    for i in range(grid[0]):
        for j in range(grid[1]):
            own = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scale[i, j] = abs(weight[own]).max() / 448
            values[own] = eight_bits(weight[own] / scale[i, j]).float().numpy()
            stand_for[own] = values[own] * scale[i, j]
    scales = torch.from_numpy(scale) if block else torch.tensor(scale.item())
    return {"weight": eight_bits(values), "weight_scale_inv": scales}, stand_for


def scaled(
    weight: np.ndarray, *, strategy="channel", kind="float", symmetric=True
) -> tuple[Parts, np.ndarray]:
    """compressed-tensors, "float-quantized" and "int-quantized"."""
    top, zero = 448 if kind == "float" else 127, np.zeros((len(weight), 1))
    scale = abs(weight).max(1, keepdims=True) / top
    if strategy == "tensor":
        scale = scale.max().reshape(1)
    if not symmetric:
        zero = np.rint(weight.mean(1, keepdims=True) / scale).clip(-100, 100)
        scale = scale * 2
    scale = torch.from_numpy(scale.astype(np.float32)).bfloat16()
    wide = scale.float().numpy()
    if kind == "float":
        values = eight_bits(weight / wide)
    else:
        values = torch.from_numpy(np.rint(weight / wide + zero).clip(-128, 127)).to(torch.int8)
    stand_for = ((values.float().numpy() - zero) * wide).astype(np.float32)
    parts = {"weight": values, "weight_scale": scale}
    if not symmetric:
        parts["weight_zero_point"] = torch.from_numpy(zero).to(torch.int8)
    return parts, stand_for


@dataclass(frozen=True)
class Form:
    """A packer, and what `quantization_config` says of it."""

    settings: dict
    pack: Callable[..., tuple[Parts, np.ndarray]]
    options: dict = field(default_factory=dict)


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": [KEPT]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True,
       "version": "gemm", "modules_to_not_convert": [KEPT]}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False,
        "dynamic": {f"-:{KEPT}": {}}}  # fmt: skip


def compressed(format: str, **weights) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head", KEPT],
            "config_groups": {"group_0": group}}  # fmt: skip


PACKED = {"type": "int", "strategy": "group", "group_size": GROUP}
FLOAT, INT = {"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "int"}

FORMS = {
    "fp8": Form(FP8 | {"weight_block_size": [40, 48]}, fp8, {"block": (40, 48)}),
    "fp8-tensor": Form(FP8, fp8),
    "float-channel": Form(compressed("float-quantized", strategy="channel", **FLOAT), scaled),
    "float-tensor": Form(compressed("float-quantized", strategy="tensor", **FLOAT), scaled,
                         {"strategy": "tensor"}),
    "int-channel": Form(compressed("int-quantized", strategy="channel", **INT), scaled,
                        {"kind": "int"}),
    "int-asymmetric": Form(compressed("int-quantized", strategy="channel", **INT), scaled,
                           {"kind": "int", "symmetric": False}),
    "packed": Form(compressed("pack-quantized", num_bits=4, **PACKED), packed),
    "packed-8": Form(compressed("pack-quantized", num_bits=8, **PACKED), packed, {"bits": 8}),
    "packed-asymmetric": Form(compressed("pack-quantized", num_bits=4, **PACKED), packed,
                              {"symmetric": False, "shuffled": True}),
    "awq": Form(AWQ, awq),
    "gptq": Form(GPTQ, gptq),
    "gptq-8": Form(GPTQ | {"bits": 8}, gptq, {"bits": 8}),
    "gptq-v2": Form(GPTQ | {"checkpoint_format": "gptq_v2"}, gptq, {"less": 0}),
    "gptq-act-order": Form(GPTQ | {"desc_act": True}, gptq, {"shuffled": True}),
    "gptq-symmetric": Form(GPTQ | {"sym": True}, gptq, {"symmetric": True}),
    "gptq-v2-unsaid": Form(GPTQ | {"sym": True}, gptq, {"symmetric": True, "less": 0}),
}  # fmt: skip


def quantise(folder: Path, form: Form) -> dict[str, np.ndarray]:
    """Store a folder's projections in a form, but for `KEPT`; the state that it then stands for."""
    file = folder / "model.safetensors"
    stored, state = load_file(file), {}
    for name, value in list(stored.items()):
        state[name] = value.float().numpy()
        if name.endswith("_proj.weight") and not name.startswith(KEPT):
            parts, state[name] = form.pack(state.pop(name), **form.options)
            del stored[name]
            module = name.removesuffix("weight")
            stored |= {module + part: tensor for part, tensor in parts.items()}
    save_file(stored, file, metadata={"format": "pt"})
    edit_json(folder / "config.json", quantization_config=form.settings)
    return state
