"""Short causal convolutions along the tokens, in place of attention or before it, in ANE form.

A depthwise convolution of K taps is written as K products of shifted activations with a weight per
channel. Where norms run, these do, whatever is made of a convolution in thousands of groups.
The K - 1 columns before a call are a tail, which the host keeps.

Letters: see `ane_book.models.base`; here also K taps.

References: LFM2 technical report (arXiv 2511.23404); `transformers`, modeling_lfm2.py.
"""

from ane_book.models.base.layers import DecoderBlock
from ane_book.models.base.projection import Projection
import torch
from torch import Tensor, nn


class CausalConvolution(nn.Module):
    """A depthwise convolution of each token with the K - 1 tokens before it."""

    def __init__(self, channels: int, taps: int):
        super().__init__()
        self.taps = nn.ParameterList(torch.ones(1, channels, 1, 1) for _ in range(taps))

    def forward(self, x: Tensor, tail: Tensor) -> Tensor:
        """x (1, C, 1, T), its K - 1 columns before this call (1, C, 1, K-1) -> (1, C, 1, T)."""
        T, columns = x.shape[3], torch.cat([tail, x], dim=3)
        y = columns[..., :T] * self.taps[0]  # the first tap is of the token farthest back
        for i, tap in enumerate(self.taps[1:], start=1):
            y = y + columns[..., i : i + T] * tap
        return y


class GatedConvolution(nn.Module):
    """LFM2's operator in place of attention: a gate, a short convolution, another gate."""

    def __init__(self, channels: int, taps: int):
        super().__init__()
        self.inward = Projection(channels, 3 * channels)
        self.convolution = CausalConvolution(channels, taps)
        self.out = Projection(channels, channels)

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """x (1,C,1,T), tail (1,C,1,K-1) -> y (1,C,1,T), the tail's new columns (1,C,1,T)."""
        before, behind, x = self.inward(x).chunk(3, dim=1)
        x = before * x
        return self.out(behind * self.convolution(x, tail)), x


class OperatorBlock(DecoderBlock):
    """A `DecoderBlock` whose attention is another operator, with inputs and results of its own."""

    def forward(self, hidden, *given):
        """hidden (1,C,1,T), what the operator takes beside it -> hidden, what it returns beside
        what it adds."""
        y, *new = self.attention(self.before_attention(hidden), *given)
        hidden = hidden + self.after_attention(y)
        return (
            hidden + self.after_feed_forward(self.feed_forward(self.before_feed_forward(hidden))),
            *new,
        )
