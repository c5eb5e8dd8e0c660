"""Gated DeltaNet in ANE form: a memory in place of a cache, whatever the number of tokens.

Each head has a memory M (Dv, Dk). A token decays it by exp(g), and then corrects what the memory
says of its key towards its value, by a share beta; its query reads the result:

    M = exp(g) M
    M = M + beta (v - M k) k'
    y = M q

A call of T tokens is a chunk, for which all of this is products of matrices; at T = 1 they are the
three lines above. With E[j, t] the decay from token j to token t, what is written for the tokens,
U = (u_1, ..., u_T), solves U (I + N) = B, N[j, t] = beta_t E[j, t] (k_j . k_t) for j < t:

    B = beta (V - exp(c) M K)                 c: the sum of g up to each token
    Y = 1 / (I + N)                           by halves, see `inverse`
    U = B Y
    y = exp(c) M Q + U (E * (K' Q))
    M = exp(c_T) M + (E[:, T] U) K'

Columns of padding have beta = 0 and g = 0, so that they leave the memory as it is.

In half precision: nothing is squared, keys and queries are RMS normed (elements near 1, so that no
product is small) and their lengths are taken out again in beta and in the eps of the last norm; E
comes of sums of the g between two tokens, not of differences of sums; softplus is written out,
since the engine's own is reported to be 0 for large numbers (claim `softplus-large`), and silu is
written by tanh: what the engine's own is said to be off near 0 (claim `silu-small`) would grow in
the norm behind it.

Letters: see `ane_book.models.base`; here H heads of values, K of keys, G = H / K.

References: Gated Delta Networks (arXiv 2412.06464), and in chunks arXiv 2406.06484; `transformers`,
modeling_qwen3_5.py.
"""

import warnings

from ane_book.models.base.layers import Attention, rms_normalize
from ane_book.models.base.projection import Projection
from ane_families.convolved import CausalConvolution
from ane_families.layers import in_half
import torch
from torch import Tensor, nn
import torch.nn.functional as F

SMALLEST = -16.0  # of g: exp(-16) is less than half precision holds, and sums stay small
LENGTH_EPSILON = 1e-6  # of the lengths of keys and queries, in the square


class HeadNorm(nn.Module):
    """RMS norm over the D channels of heads (heads, D, 1, T), without a weight."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_normalize(x, 1, self.eps)


class GatedAttention(Attention):
    """Attention whose heads are multiplied by a sigmoid of the input before they are projected."""

    def __init__(self, config, prepare: nn.Module):
        super().__init__(config, prepare)
        C, _, Q, _ = config.widths
        self.gate, self.mixed = Projection(C, Q), Projection(Q, C)
        self.out: nn.Module = nn.Identity()

    def forward(self, x, cos, sin, mask, keys, values):
        """As `Attention.forward`."""
        y, new_keys, new_values = super().forward(x, cos, sin, mask, keys, values)
        return self.mixed(y * torch.sigmoid(self.gate(x))), new_keys, new_values


class GatedDelta(nn.Module):
    """The operator in place of attention: projections, a short convolution, the delta rule, a gated
    norm.

    heads: H. key_heads: K. sizes: Dk and Dv. taps: of the convolution.
    """

    def __init__(
        self, C: int, *, heads: int, key_heads: int, sizes: tuple[int, int], taps: int, eps: float
    ):
        super().__init__()
        self.heads, self.key_heads, (self.Dk, self.Dv) = heads, key_heads, sizes
        self.keys, self.values = key_heads * self.Dk, heads * self.Dv
        # The projection's channels: queries, keys, values, gates, beta, what g is made of.
        self.inward = Projection(C, 2 * self.keys + 2 * self.values + 2 * heads)
        self.convolution = CausalConvolution(2 * self.keys + self.values, taps)
        self.dt_bias = nn.Parameter(torch.zeros(1, heads, 1, 1))
        self.a_log = nn.Parameter(torch.zeros(1, heads, 1, 1))
        self.unit = HeadNorm(LENGTH_EPSILON / self.Dk)
        self.query_scale = in_half(self.Dk**-0.5)
        # What is read is `transformers`' own times this, which the norm undoes but for its eps.
        self.norm = HeadNorm(eps * (self.query_scale * self.Dk**1.5) ** 2)
        self.weight = nn.Parameter(torch.ones(1, self.Dv, 1, 1))
        self.out = Projection(self.values, C)

    def forward(self, x: Tensor, real: Tensor, tail: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        """x (1,C,1,T), real (1,1,1,T), tail (1,2*K*Dk+H*Dv,1,taps-1), memory (1,H,Dv,Dk) -> y
        (1,C,1,T), the tail's new columns, the memory after the last token that is real."""
        T, H = x.shape[3], self.heads
        new, gate, beta, step = self.inward(x).split(
            [2 * self.keys + self.values, self.values, H, H], dim=1
        )
        qk, v = silu(self.convolution(new, tail)).split([2 * self.keys, self.values], dim=1)
        q, k = self.unit(qk.view(2 * self.key_heads, self.Dk, 1, T)).split(self.key_heads)
        beta = torch.sigmoid(beta) * real
        # exp(a_log), and 0 where nothing is real.
        rate = torch.exp(self.a_log + (real - 1.0) * 100.0)
        g = (softplus(step + self.dt_bias) * -rate).clamp(SMALLEST, 0.0)
        y, memory = delta_rule(
            self._repeated(q) * self.query_scale,
            self._repeated(k),
            v.view(1, H, self.Dv, T),
            beta.transpose(1, 2).reshape(1, H, 1, T),
            g.transpose(1, 2).reshape(1, H, 1, T),
            memory,
        )
        y = self.norm(y.reshape(H, self.Dv, 1, T)) * self.weight
        return self.out(y.reshape(1, H * self.Dv, 1, T) * silu(gate)), new, memory

    def _repeated(self, x: Tensor) -> Tensor:
        """Heads of keys (K, Dk, 1, T), each G times in a row, as (1, H, Dk, T)."""
        T, group = x.shape[3], self.heads // self.key_heads
        if group > 1:
            x = torch.cat([head for head in x.split(1) for _ in range(group)])
        return x.reshape(1, self.heads, self.Dk, T)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """q and k (1,H,Dk,T), of mean square 1 but for q's scale, v (1,H,Dv,T), beta and g (1,H,1,T),
    memory (1,H,Dv,Dk) -> what the queries read (1,H,Dv,T), the memory after the last token.

    The memory is that of keys of length 1, times sqrt(Dk), and the share of what it says of a key
    is 1 / Dk for it.
    """
    T, share = tokens_of(q), beta / q.shape[2]
    start, pairs = decays(g, T)
    end, whole = pairs[..., T - 1 :].reshape(1, -1, 1, T), start[..., T - 1 :]
    unknown = v * beta - (memory @ k) * (start * share)
    if T > 1:
        among = (k.transpose(2, 3) @ k) * pairs * share
        unknown = unknown @ inverse(among * torch.ones(T, T, dtype=q.dtype).triu(1))
    read = (memory @ q) * start + unknown @ ((k.transpose(2, 3) @ q) * pairs)
    return read, memory * whole + (unknown * end) @ k.transpose(2, 3)


def decays(g: Tensor, T: int) -> tuple[Tensor, Tensor]:
    """g (1,H,1,T) -> the decay from before the call to each token (1,H,1,T), and E of the formulas
    above (1,H,T,T)."""
    ones = torch.ones(T + 1, T, dtype=g.dtype)
    sums = (ones.triu() * g) @ torch.ones(T, T, dtype=g.dtype).triu()  # (1, H, T + 1, T)
    decay = torch.exp(sums)  # row 0: from before the call; row j + 1: from token j
    start, pairs = decay.split([1, T], dim=2)
    pairs = pairs * ones[1:].triu()
    return start, pairs


def inverse(above: Tensor) -> Tensor:
    """1 / (I + N) of N (..., T, T), which is 0 on and below the diagonal.

    Blocks on the diagonal are inverted, of 1, 2, 4, ... rows; two of them and what is between them
    make the next. So every number on the way is one of the inverse of a part, while the series I -
    N + N^2 - ... has powers that overflow half precision where keys are alike.
    """
    T = tokens_of(above)
    row, size = torch.arange(T), 1
    found = torch.eye(T, dtype=above.dtype)
    while size < T:
        block = row // size
        between = (block[:, None] + 1 == block) & (block[:, None] % 2 == 0)
        step = above * between.to(above.dtype)
        found = found - (step if size == 1 else found @ step @ found)
        size *= 2
    return found


def tokens_of(x: Tensor) -> int:
    """T, the last axis: a number, which a trace may keep, since a graph is for one T."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return int(x.shape[-1])


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x) as h + h tanh(h), h = x / 2."""
    half = x * 0.5
    return half + half * torch.tanh(half)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) as max(x, 0) + log(1 + u), u = exp(-|x|), which holds small results too.

    log(1 + u) = 2 artanh(z), z = u / (2 + u) <= 1/3, by five terms of its series: within 2e-6.
    """
    u = torch.exp(-torch.abs(x))
    z = u / (u + 2.0)
    s = z * z
    series = 1.0 + s * (1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9))))
    return F.relu(x) + 2.0 * z * series
