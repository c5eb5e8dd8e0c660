"""The forms of attention: how heads and tokens lie between the projections, and the products.

`ROWS` is the default. `APPLE` is what Apple's rules for the Neural Engine and its reference model
ask for. Both have the same parameters and compute the same function; `ane_book.layout` has the
shapes of caches, masks and rotary tables of each.

Letters: see `ane_book.models.base`.

References: apple/coreai-models@86b363d, neural_engine_rules.md, "Per-head attention" and the two
sections after it; apple/ml-ane-transformers@da64000, multihead_attention.py.
"""

import torch
from torch import Tensor
import torch.nn.functional as F

__all__ = ["APPLE", "FORMS", "ROWS", "AttentionForm"]


class AttentionForm:
    """A form of attention. heads, dims: the axes of heads and of D in what `apart` returns."""

    heads: int
    dims: int

    def apart(self, x: Tensor, heads: int, D: int) -> Tensor:
        """Set heads apart in the projection's result (1, heads * D, 1, T)."""
        raise NotImplementedError

    def together(self, x: Tensor) -> Tensor:
        """Keys or values of K heads as the cache keeps them."""
        raise NotImplementedError

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Attention's result, (1, H*D, 1, T), from q, k and v as `apart` has them, the mask and
        this layer's cache. The rotary tables have already applied the scale 1/sqrt(D)."""
        raise NotImplementedError


class Rows(AttentionForm):
    """Heads are (1, heads, T, D), the cache (1, K, S, D), the mask (1, 1, G*T or 1, S+T).

    Scores over the S slots and over the T new tokens are computed separately and concatenated
    before the softmax, so that the cache is never copied.
    """

    heads, dims = 1, 3

    def apart(self, x: Tensor, heads: int, D: int) -> Tensor:
        return x.view(1, heads, D, x.shape[3]).transpose(2, 3)

    def together(self, x: Tensor) -> Tensor:
        return x

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        (_, H, T, D), (_, K, S, _) = q.shape, keys.shape
        # The G query heads of one key/value head become rows of one matrix: no copy of K or V.
        q = q.reshape(1, K, (H // K) * T, D)
        scores = torch.cat([q @ keys.transpose(2, 3), q @ k.transpose(2, 3)], dim=3)
        weights = F.softmax(scores + mask, dim=3)  # (1, K, G*T, S+T)
        old, new = weights.split([S, T], dim=3)
        y = old @ values + new @ v  # (1, K, G*T, D)
        return y.view(1, H, T, D).transpose(2, 3).reshape(1, H * D, 1, T)


class Apple(AttentionForm):
    """Heads are (heads, D, 1, T), the cache (1, K*D, 1, S), the mask (1, S+T, 1, T).

    Each query head has two products of its own, in the einsums that Apple writes, and a softmax
    over the channels. New keys and values are appended to the cache that was read.
    """

    heads, dims = 0, 1

    def apart(self, x: Tensor, heads: int, D: int) -> Tensor:
        return x.view(heads, D, 1, x.shape[3])

    def together(self, x: Tensor) -> Tensor:
        return x.reshape(1, -1, 1, x.shape[3])

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        (H, D, _, _), K = q.shape, k.shape[0]
        keys = torch.cat([keys, self.together(k)], dim=3).transpose(1, 3)  # (1, S+T, 1, K*D)
        values = torch.cat([values, self.together(v)], dim=3)  # (1, K*D, 1, S+T)
        of_keys, of_values = keys.split(D, dim=3), values.split(D, dim=1)
        y = []
        for h, own in enumerate(q.split(1)):
            group = h // (H // K)
            scores = torch.einsum("bchq,bkhc->bkhq", own, of_keys[group])
            weights = F.softmax(scores + mask, dim=1)  # (1, S+T, 1, T)
            y.append(torch.einsum("bkhq,bchk->bchq", weights, of_values[group]))
        return torch.cat(y, dim=1)


ROWS, APPLE = Rows(), Apple()
FORMS: dict[str, AttentionForm] = {"rows": ROWS, "apple": APPLE}
