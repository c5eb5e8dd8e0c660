"""Calibrate on a text: moments of each projection's inputs, and how its outputs move the loss.

Two passes over the layers, one of which is in memory at a time. Forwards, each layer runs on every
window of the text, and the second moments of what its projections take in are summed up. Backwards,
from the head's loss on a few windows, each layer runs again, and the mean squares of the gradients
of its projections' outputs are summed up: the diagonal of the Fisher information. Its labels are
not the text's own next tokens but what the model draws, so that the gradients are those of its own
distribution, which quantisation should change as little as possible.

Letters: O output channels, C input channels of a projection, T tokens of a window, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ane_book.conversion.golden import GoldenPass, loaded
from ane_book.conversion.quantize.feedback import Moments, moments_of
from ane_book.models import DecoderConfig
from ane_book.models.base import decoder
from ane_book.options import Recipe, checked
import numpy as np
import torch
from torch import Tensor, nn

TOKENS = 8192  # of the text that are taken
WINDOW, GRADED = 256, 4  # tokens of a window; windows of the backward pass
HEAD = "head"

Sums = dict[str, Tensor]  # by the name of a projection's weight


def calibration_text() -> str:
    """Text that ships with the library; nothing of it is in the texts of `evidence.loss`."""
    return Path(__file__).with_name("calibration.txt").read_text(encoding="utf-8")


class Calibration(GoldenPass):
    """Runs both passes; the results are files `calibration_*.pt` in the unfinished bundle."""

    def __init__(
        self,
        config: DecoderConfig,
        folder: Path,
        read: Callable[[str], np.ndarray],
        token_ids: Sequence[int],
    ):
        T = min(WINDOW, config.max_position)
        super().__init__(config, checked(Recipe, {"context": T, "prefill": T}), folder, read)
        count = len(token_ids) // T
        self.windows = np.array(token_ids[: count * T]).reshape(count, T)

    def of(self, place: int | str) -> dict[str, Moments]:
        """The moments of a layer's projections by the names of their weights, or of HEAD's."""
        return {n: Moments(**fields) for n, fields in torch.load(self._file(place)).items()}

    def _save(self, place: int | str, inputs: Sums, outputs: Sums) -> None:
        """Write what `of` reads, to choose schemes and to quantise by them."""
        moments = {name: vars(moments_of(x, outputs[name])) for name, x in inputs.items()}
        torch.save(moments, self._file(place))

    def _file(self, place: int | str) -> Path:
        return self.folder / f"calibration_{place}.pt"

    def remove(self) -> None:
        for file in self.folder.glob("calibration_*.pt"):
            file.unlink()

    def run(self) -> Iterator[str]:
        """Both passes; yields a description of each step."""
        layers, layer_inputs = range(self.config.num_layers), []
        hidden = [self._given(ids) for ids in self.windows]
        for layer in layers:
            layer_inputs.append(hidden[:GRADED])
            block = self._block(layer)[0].requires_grad_(False)
            with torch.no_grad(), _watched(block) as sums:
                hidden = [self._after(block, x, layer) for x in hidden]
            torch.save(sums["inputs"], self._file(layer))
            yield f"calibrating layer {layer + 1} of {len(layers)}"
        gradients = self._head(hidden)
        yield "calibrating head"
        for layer in reversed(layers):
            block = self._block(layer)[0].requires_grad_(False)
            forwards = torch.load(self._file(layer))
            with _watched(block) as sums:
                gradients = [
                    _back(lambda x: self._after(block, x, layer), *pair)  # noqa: B023 - now
                    for pair in zip(layer_inputs.pop(), gradients, strict=True)
                ]
            self._save(layer, forwards, sums["outputs"])
            yield f"sensitivity of layer {layer + 1} of {len(layers)}"

    def _after(self, block: nn.Module, hidden: Tensor, layer: int) -> Tensor:
        return self._step(block, {"hidden": hidden}, layer)["hidden"]

    def _head(self, hidden: list[Tensor]) -> list[Tensor]:
        """Save the head's statistics; returns the gradients of its inputs for the backward pass."""
        splits = (self.config.vocab_size,)
        state = decoder.head_weights(self.config, splits, self.read)
        head = loaded(partial(decoder.Head, self.config, splits), state).requires_grad_(False)
        draw, variance = torch.Generator().manual_seed(0), torch.zeros(splits)

        def loss(x: Tensor) -> Tensor:
            logits = head(x)[0][0, :, 0].T  # (T, V)
            with torch.no_grad():
                p = logits.softmax(dim=1)
                variance.add_((p * (1 - p)).sum(dim=0))  # of the labels: what all draws would give
                drawn = torch.multinomial(p, 1, generator=draw)[:, 0]
            return nn.functional.cross_entropy(logits, drawn, reduction="sum")

        graded = hidden[:GRADED]
        gradients = [_back(loss, x) for x in graded]
        with torch.no_grad():
            normed = torch.cat([head.norm(x)[0, :, 0] for x in hidden], dim=1)  # (C, all tokens)
        inputs = {HEAD: normed @ normed.T / normed.shape[1]}
        outputs = {HEAD: variance / (len(graded) * graded[0].shape[3])}
        self._save(HEAD, inputs, outputs)
        return gradients


def _back(
    function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor | None = None
) -> Tensor:
    """The gradient of a loss with respect to x, from that with respect to function(x)."""
    leaf = x.clone().requires_grad_(True)
    (result,) = torch.autograd.grad(function(leaf), leaf, gradient)
    return result


@contextmanager
def _watched(block: nn.Module) -> Iterator[dict[str, Sums]]:
    """Collect statistics of each projection in a dict, complete when the block of `with` ends; from
    then on the module is not to be used.

    They are means over all tokens: "inputs", of x x' (C, C), and "outputs", of the squared
    gradients of the outputs (O,).
    """
    sums: dict[str, Sums] = {"inputs": {}, "outputs": {}}
    counts: dict[tuple[str, str], int] = {}

    def add(kind: str, name: str, new: Tensor, tokens: int) -> None:
        sums[kind][name] = sums[kind].get(name, 0) + new
        counts[kind, name] = counts.get((kind, name), 0) + tokens

    def hook(name: str) -> Callable:
        def watch(_, inputs: tuple[Tensor], output: Tensor) -> None:
            x = inputs[0][0, :, 0]  # (C, T)
            if not output.requires_grad:
                return add("inputs", name, x @ x.T, x.shape[1])
            output.register_hook(
                lambda g: add("outputs", name, g.square().sum(dim=(0, 2, 3)), x.shape[1])
            )
            return None

        return watch

    for name, module in block.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(hook(f"{name}.weight"))
    yield sums
    for (kind, name), tokens in counts.items():
        sums[kind][name] /= tokens
