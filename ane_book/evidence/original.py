"""Run a model with `transformers`, an independent reference for a conversion.

    source = open_source(file)
    reference = original.model(source.config(), original.weights(source))
    original.logits(reference)(token_ids)  # (n, V), what `loss.measure` takes
    original.greedy(reference, token_ids, 24)

It computes in float32, with weights rounded to fp16 as a package stores them, so that a comparison
shows differences in computation, not in storage.

Letters: n tokens of a text, V vocabulary. Taught in the chapter "From a layer to packages".
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.evidence.loss import Logits
from ane_book.weights import WeightSource
from mlprogram.extras import missing
import numpy as np
import torch

TROUBLES = {
    "missing_keys": "missing",
    "unexpected_keys": "left over",
    "mismatched_keys": "misshapen",
}


def weights(source: WeightSource) -> dict[str, torch.Tensor]:
    """Every tensor of a source by name: float32, rounded to fp16."""
    return {name: torch.from_numpy(source.tensor(name)).half().float() for name in source.names()}


def model(config: Mapping, tensors: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """Build the decoder of `transformers` with this configuration and these tensors, not copied.

    Raises UnsupportedModel without `transformers`, and for a type or a configuration that it does
    not take, and InvalidWeights for a tensor that is missing, unexpected or of the wrong shape.
    """
    try:
        import transformers
    except ImportError:
        purpose = "to compare with an independent implementation"
        raise UnsupportedModel(missing(purpose, "ane-book[transformers]", "transformers")) from None
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS

    kind = str(config.get("model_type"))
    if kind not in DECODERS:
        release = f"transformers {transformers.__version__}"
        raise UnsupportedModel(f"config.json: {release} has no decoder of model_type {kind!r}")
    try:
        settings = transformers.AutoConfig.for_model(**config)
    except Exception as error:  # of many kinds, some of them its dependencies' own
        reason = " ".join(str(error).split())
        raise UnsupportedModel(f"config.json: transformers does not take it: {reason}") from error
    with _without_bars(transformers.utils.logging):
        made, found = getattr(transformers, DECODERS[kind]).from_pretrained(
            None,
            config=settings,
            state_dict=dict(tensors),
            dtype=torch.float32,  # else that of the file, which the configuration names
            ignore_mismatched_sizes=True,  # they are told below, as the others are
            output_loading_info=True,
        )
    for key, said in TROUBLES.items():
        if names := sorted(name if isinstance(name, str) else name[0] for name in found[key]):
            more = f", and {len(names) - 1} more" if names[1:] else ""
            raise InvalidWeights(f"{kind}: tensor {names[0]!r} is {said}{more}")
    return made.eval().requires_grad_(False)


@contextmanager
def _without_bars(logging) -> Iterator[None]:
    """Turn the progress bars of `transformers` off, and restore its settings afterwards."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def logits(reference: torch.nn.Module) -> Logits:
    """A function from token ids to the logits (n, V), float32, after each of them."""

    @torch.inference_mode()
    def after(token_ids: Sequence[int]) -> np.ndarray:
        return reference(torch.tensor([list(token_ids)])).logits[0].numpy()

    return after


@torch.inference_mode()
def greedy(reference: torch.nn.Module, token_ids: Sequence[int], count: int) -> list[int]:
    """Decode `count` tokens greedily."""
    step, cache, found = torch.tensor([list(token_ids)]), None, []
    for _ in range(count):
        out = reference(step, past_key_values=cache, use_cache=True)
        found.append(int(out.logits[0, -1].argmax()))
        step, cache = torch.tensor([found[-1:]]), out.past_key_values
    return found
