"""Mamba-2 in ANE form: a memory in place of a cache, whatever the number of tokens.

Each head has a memory M (P, N). A token decays it by exp(g), and adds its value times its step dt
under its key b; its query c reads the result. b and c are those of a group of heads:

    M = exp(g) M + dt v b'            g = -exp(a_log) dt
    y = M c + D v

A call of T tokens is a chunk, for which all of this is products of matrices; at T = 1 they are the
two lines above. With E[j, t] the decay from token j to token t, which is 0 for j > t:

    U = dt V
    y = exp(s) M C + U (E * (B' C)) + D V      s: the sum of g up to each token
    M = exp(s_T) M + (E[:, T] U) B'

Columns of padding have dt = 0, so that they leave the memory as it is.

In half precision as in `delta.py`: E comes of sums of the g between two tokens, not of differences
of sums; softplus and silu are written out, the latter since a norm is behind it.

Letters: see `ane_book.models.base`; here H heads of P values, N the size of a key, G groups of
heads, I = H * P.

References: Mamba-2 (arXiv 2405.21060); `transformers`, modeling_granitemoehybrid.py.
"""

from ane_book.models.base.projection import Projection
from ane_families.convolved import CausalConvolution
from ane_families.delta import SMALLEST, HeadNorm, decays, silu, softplus, tokens_of
import torch
from torch import Tensor, nn


class Mamba(nn.Module):
    """The operator in place of attention: a projection, a short convolution, the memory, a gated
    norm over the channels of each group.

    heads: H. size: P. state: N. groups: G. taps: of the convolution.
    """

    def __init__(
        self, C: int, *, heads: int, size: int, state: int, groups: int, taps: int, eps: float
    ):
        super().__init__()
        self.heads, self.size, self.state, self.groups = heads, size, state, groups
        self.inner = heads * size
        self.mixed = self.inner + 2 * groups * state  # channels of values, keys and queries
        self.inward = Projection(C, self.inner + self.mixed + heads)  # gate, those, steps
        self.convolution = CausalConvolution(self.mixed, taps)
        self.bias = nn.Parameter(torch.zeros(1, self.mixed, 1, 1))  # of the convolution
        self.dt_bias = nn.Parameter(torch.zeros(1, heads, 1, 1))
        self.a_log = nn.Parameter(torch.zeros(1, heads, 1, 1))
        self.skip = nn.Parameter(torch.ones(1, heads, 1, 1))  # D
        self.norm = HeadNorm(eps)
        self.weight = nn.Parameter(torch.ones(1, self.inner, 1, 1))
        self.out = Projection(self.inner, C)

    def forward(self, x: Tensor, real: Tensor, tail: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        """x (1,C,1,T), real (1,1,1,T), tail (1,I+2*G*N,1,taps-1), memory (1,H,P,N) -> y (1,C,1,T),
        the tail's new columns, the memory after the last token that is real."""
        T, H, G, keys = x.shape[3], self.heads, self.groups, self.groups * self.state
        gate, new, step = self.inward(x).split([self.inner, self.mixed, H], dim=1)
        mixed = silu(self.convolution(new, tail) + self.bias)
        v, b, c = mixed.split([self.inner, keys, keys], dim=1)
        v, b, c = v.view(1, H, self.size, T), b.view(1, G, -1, T), c.view(1, G, -1, T)
        dt = softplus(step + self.dt_bias) * real
        # By `real`, so that no constant is folded: conversion looks for a_log itself.
        g = (dt * -torch.exp(self.a_log * real)).clamp(SMALLEST, 0.0)
        y, memory = self.scan(v * dt, b, c, g, memory)
        y = (y + v * self.skip).reshape(1, self.inner, 1, T) * silu(gate)
        y = self.norm(y.view(G, -1, 1, T)).reshape(1, self.inner, 1, T) * self.weight
        return self.out(y), new, memory

    def scan(
        self, u: Tensor, b: Tensor, c: Tensor, g: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """u (1,H,P,T), b and c (1,G,N,T), g (1,H,1,T), memory (1,H,P,N) -> what the queries read
        (1,H,P,T), the memory after the last token."""
        T, H, G, P = tokens_of(u), self.heads, self.groups, self.size
        start, pairs = decays(g, T)
        end, whole = pairs[..., T - 1 :].reshape(1, H, 1, T), start[..., T - 1 :]
        # The heads of a group have one key and query: rows of one product, or a batch of it.
        old = memory.view(1, G, -1, self.state) @ c  # (1, G, H/G*P, T)
        among = (b.transpose(2, 3) @ c).view(G, 1, T, T) * pairs.view(G, -1, T, T)
        own = u.view(G, -1, P, T) @ among  # (G, H/G, P, T)
        read = old.view(1, H, P, T) * start + own.view(1, H, P, T)
        written = (u * end).view(1, G, -1, T) @ b.transpose(2, 3)  # (1, G, H/G*P, N)
        return read, memory * whole + written.view(1, H, P, self.state)
