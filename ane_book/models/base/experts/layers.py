"""The layers of a mixture of experts in ANE form: gates, experts, and their sum.

Neither `topk` nor gather is used: every op has a static shape and stays on the ANE.

Reference: the top k by comparing and selecting, since `topk` splits the graph:
sbryngelson/ANEForge (arXiv 2606.17090).
"""

from collections.abc import Callable

from ane_book.host import MASKED
from ane_book.models.base.experts import Experts
from ane_book.models.base.projection import Projection
import torch
from torch import Tensor, nn
import torch.nn.functional as F

Activation = Callable[[Tensor, Tensor], Tensor]  # (gate, up) -> input of the down projection


def chosen(scores: Tensor, k: int) -> Tensor:
    """Mark each token's k largest scores: (1, E, 1, T) -> bool of the same shape.

    Of equal scores the first ones are taken, so there are always exactly k (`torch.topk` does not
    specify which). Scores must lie above -20,000.
    """
    E = scores.shape[1]
    # A float start, or the package would count in int32; fp16 is exact for integers up to 2,048.
    order = torch.arange(0.0, E, dtype=scores.dtype).view(1, E, 1, 1)
    beyond, taken = torch.full_like(order, E), torch.full_like(order, MASKED)
    left = scores
    for _ in range(k):
        ties = torch.where(left == left.amax(dim=1, keepdim=True), order, beyond)
        left = torch.where(order == ties.amin(dim=1, keepdim=True), taken, left)
    return left < MASKED / 2


class TopGates(nn.Module):
    """Gates of the experts: softmax over the k largest scores, and 0 for the others."""

    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, scores: Tensor) -> Tensor:
        """scores (1, E, 1, T) -> gates (1, E, 1, T); each token's add up to 1."""
        hidden = torch.full((1, scores.shape[1], 1, 1), MASKED, dtype=scores.dtype)
        return F.softmax(torch.where(chosen(scores, self.k), scores, hidden), dim=1)


def of_chosen(gates: Tensor, taken: Tensor) -> Tensor:
    """Gates (1, E, 1, T) where `taken` (1, E, 1, T) is true, and 0 elsewhere."""
    return torch.where(taken, gates, torch.zeros(1, gates.shape[1], 1, 1, dtype=gates.dtype))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU's activation: silu(gate) * up."""
    return F.silu(gate) * up


class ExpertGroup(nn.Module):
    """n experts fused: one convolution for all gate and up projections, one for all down.

    apart: a single expert as a package of its own, which includes its down bias.
    """

    def __init__(
        self, C: int, width: int, n: int, activation: Activation, biases: bool, apart: bool = False
    ):
        super().__init__()
        self.n, self.width, self.activation, self.apart = n, width, activation, apart
        self.gate_up = Projection(C, 2 * n * width, biases)
        self.down = Projection(n * width, C, biases and apart)

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        """x (1, C, 1, T), gates (1, n, 1, T) -> (1, C, 1, T)."""
        n, width, T = self.n, self.width, x.shape[3]
        gate, up = self.gate_up(x).chunk(2, dim=1)  # 2 x (1, n*F, 1, T)
        y = self.activation(gate, up)
        if self.apart:
            return self.down(y) * gates
        if n == 1:
            return self.down(y * gates)
        return self.down((y.view(1, n, width, T) * gates.view(1, n, 1, T)).view(1, -1, 1, T))


class Mixture(nn.Module):
    """The sum of all experts' outputs, each times its gate."""

    def __init__(self, experts: Experts, activation: Activation):
        super().__init__()
        C, width, biases, apart = experts.channels, experts.width, experts.biases, experts.apart
        self.sizes, self.apart = [len(group) for group in experts.groups], apart
        self.groups = nn.ModuleList(
            ExpertGroup(C, width, n, activation, biases, apart) for n in self.sizes
        )
        self.bias = Projection(experts.count, C) if biases and not apart else None

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        """x (1, C, 1, T), gates (1, E, 1, T) -> (1, C, 1, T)."""
        parts = gates.split(self.sizes, dim=1) if len(self.sizes) > 1 else [gates]
        groups = zip(self.groups, parts, strict=True)
        if self.bias is not None:
            y = self.bias(gates)
        else:
            group, part = next(groups)
            y = said = group(x, part)
        for group, part in groups:
            said = group(x, part)
            y = y + said
        return y
