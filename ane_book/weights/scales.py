"""Static scales of activations, which checkpoints quantised for other engines carry.

A bundle computes its activations in fp16: a Core ML program that this library writes has no
quantised activations, so calibrated scales have no place in it. Tensors of such scales are refused
by name, since the weights beside them are of the quantised model. A configuration can declare the
scales while the weights are plain, as fake-quantised ones are; such a checkpoint converts, and
`ane-book check --source` says what the bundle leaves out.

Formats: compressed-tensors (`config_groups`, `input_scale`, `input_global_scale`), FP8 of vLLM
(`activation_scheme`), ModelOpt (`quant_algo`, `input_scale`, `_amax`); scales of a quantised cache
(`k_scale`, `v_scale`) are of the same kind.
"""

from collections.abc import Iterable

from ane_book.errors import UnsupportedModel

__all__ = ["refuse_static_scales", "static_activations"]

#: How the tensors' names end.
SUFFIXES = (
    ".input_scale", ".input_global_scale", ".input_zero_point", ".act_scale",
    ".activation_scale", ".k_scale", ".v_scale", ".input_quantizer._amax",
)  # fmt: skip


def refuse_static_scales(config: dict, names: Iterable[str], place: str) -> None:
    """Raise UnsupportedModel if tensors have names of static scales. config: of config.json."""
    found = [name for name in names if name.endswith(SUFFIXES)]
    if not found:
        return
    declared = static_activations(config)
    by = f" ({declared})" if declared else ""
    raise UnsupportedModel(
        f"{place}: tensor {found[0]} ({len(found)} such) is a static scale of quantised "
        f"activations{by}; a bundle computes activations in fp16, so get the model's weights in "
        "16 bits, and compress them with --quant"
    )


def static_activations(config: dict) -> str | None:
    """What `quantization_config` says of static scales, as "method: what"; None if nothing."""
    quantised = config.get("quantization_config")
    if not isinstance(quantised, dict):
        return None
    method = quantised.get("quant_method", "quantization_config")
    if quantised.get("activation_scheme") == "static":
        return f"{method}: activation_scheme static"
    if method == "modelopt" and quantised.get("quant_algo") in ("FP8", "NVFP4"):
        return f"{method}: quant_algo {quantised['quant_algo']}"
    groups = quantised.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        inputs = group.get("input_activations") if isinstance(group, dict) else None
        if isinstance(inputs, dict) and inputs.get("dynamic", False) is False:
            return f"{method}: input_activations of {name} not dynamic"
    return None
