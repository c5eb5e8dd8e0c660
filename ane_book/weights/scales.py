"""Static scales of activations, which checkpoints quantised for other engines carry.

They say how another runtime rounds activations, and nothing of the weights beside them, which are
the same without. A bundle computes its activations in fp16: a Core ML program that this library
writes has no quantised activations. So the scales are left out, with a warning, and what the bundle
answers is nearer to the model in 16 bits than to that runtime; `ane-book check --source` says so
too. What is not a scale of activations alone, such as ModelOpt's `pre_quant_scale`, by which the
weights were divided, is no name of these, and is refused as a tensor that nothing reads.

Formats: compressed-tensors (`config_groups`, `input_scale`, `input_global_scale`), FP8 of vLLM
(`activation_scheme`), ModelOpt (`quant_algo`, `input_scale`, `_amax`); scales of a quantised cache
(`k_scale`, `v_scale`) are of the same kind.
"""

from collections.abc import Sequence
import warnings

from ane_book.errors import ScalesLeftOut

#: How the tensors' names end.
SUFFIXES = (
    ".input_scale", ".input_global_scale", ".input_zero_point", ".act_scale",
    ".activation_scale", ".k_scale", ".v_scale", ".input_quantizer._amax",
)  # fmt: skip


def warn_of_scales(config: dict, names: Sequence[str], place: str) -> None:
    """Warn that static scales with these names are left out. config: of config.json."""
    if not names:
        return
    declared = static_activations(config)
    by = f" ({declared})" if declared else ""
    told = (
        f"{place}: {len(names)} static scales of quantised activations{by}, such as {names[0]}, "
        "are left out: a bundle computes activations in fp16, and its weights are the same without"
    )
    warnings.warn(ScalesLeftOut(told), stacklevel=2)


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
