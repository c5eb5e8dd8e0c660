"""Attention in random programs, in the forms in which converters write it."""

from _random_ops import DTYPES, Operands, Shape, Value
import numpy as np

SLOTS = (64, 65, 511, 512, 513)


class Attention(Operands):
    """Forms of attention: by rows, over a cache and new rows, and as one op."""

    def mask(self, dtype: str, shape: Shape) -> Value:
        """0, or far below it, of what is known or not; the first slot is open."""
        closed = self.rng.choice([-40000, -20000, -8])
        array = np.where(self.numbers.random(shape) < 0.5, 0, closed).astype(DTYPES[dtype])
        array[..., 0] = 0
        known = self.constant(dtype, shape, array)
        if self.rng.random() < 0.3:
            return known
        zeros = self.add(
            "mul", dtype, shape, x=self.given(dtype, shape), y=np.array(0, DTYPES[dtype])
        )
        return self.add("add", dtype, shape, x=zeros, y=known)

    def scored(self, dtype: str, x: Value, mask_rows: int) -> Value:
        """Scores, scaled and masked or not."""
        scale = self.rng.choice(["mul", "real_div", ""])
        if scale:
            x = self.add(scale, dtype, x.shape, x=x, y=np.array(0.5, DTYPES[dtype]))
        if self.rng.random() < 0.7:
            mask = self.mask(dtype, (*[1] * (len(x.shape) - 2), *self.rows(x.shape, mask_rows)))
            x = self.add("add", dtype, x.shape, x=x, y=mask)
        return x

    def rows(self, shape: Shape, rows: int) -> Shape:
        return (rows if rows == 1 else shape[-2], shape[-1])

    def softmax_of(self, dtype: str, x: Value) -> Value:
        """As one op, or as five."""
        if self.rng.random() < 0.7:
            return self.add("softmax", dtype, x.shape, x=x, axis=-1)
        top = (*x.shape[:-1], 1)
        along = {"axes": [-1], "keep_dims": True}
        below = self.add(
            "sub", dtype, x.shape, x=x, y=self.add("reduce_max", dtype, top, x=x, **along)
        )
        raised = self.add("exp", dtype, x.shape, x=below)
        total = self.add("reduce_sum", dtype, top, x=raised, **along)
        return self.add("real_div", dtype, x.shape, x=raised, y=total)

    def slots(self, dtype: str, shape: Shape) -> Value:
        return self.cached(dtype, shape) if self.rng.random() < 0.3 else self.made(dtype, shape)

    def heads(self, dtype: str, heads: Shape, slots: int, depth: int) -> list[Value]:
        """Keys and values, a head of which may be read by all."""
        own = self.rng.choice([heads, (*heads[:-1], 1)])
        return [self.slots(dtype, (*own, slots, depth)) for _ in range(2)]

    def attention(self, dtype: str) -> None:
        heads = self.rng.choice([(), (2,), (1, 2), (1, 4), (2, 3)])
        tokens, depth = (
            self.rng.choice([1, 1, 2, 3, 8, 9, 16, 17]),
            self.rng.choice([1, 2, 8, 15, 16, 17, 33]),
        )
        slots = self.some(*SLOTS)
        query = self.made(dtype, (*heads, tokens, depth))
        if not heads:
            keys, values = (self.operand(dtype, (slots, depth)) for _ in range(2))
        else:
            keys, values = self.heads(dtype, heads, slots, depth)
        if len(heads) == 2 and self.rng.random() < 0.3:
            values = (
                keys if keys.shape[:-2] == heads else self.operand(dtype, (*heads, slots, depth))
            )
            keys = values
            more = {"attn_mask": self.mask(dtype, (1, 1, tokens, slots))}
            self.add("scaled_dot_product_attention", dtype, query.shape, query=query, key=keys,
                     value=values, **self.rng.choice([more, {}]))  # fmt: skip
            return
        scores = self.add(
            "matmul", dtype, (*heads, tokens, slots), x=query, y=keys, transpose_y=True
        )
        weights = self.softmax_of(dtype, self.scored(dtype, scores, self.rng.choice([1, tokens])))
        self.add("matmul", dtype, query.shape, x=weights, y=values)

    def attention_in_parts(self, dtype: str) -> None:
        """Over the slots of a cache, and new ones."""
        heads, depth = self.rng.choice([(2,), (1, 2), (1, 4)]), self.rng.choice([1, 2, 8, 16, 17])
        tokens, slots = (
            self.rng.choice([1, 2, 5, 9]),
            [self.some(*SLOTS), self.rng.choice([1, 2, 5])],
        )
        query = self.made(dtype, (*heads, tokens, depth))
        own = self.rng.choice([heads, (*heads[:-1], 1)])
        parts = [[self.slots(dtype, (*own, n, depth)) for _ in range(2)] for n in slots]
        scores = [
            self.add("matmul", dtype, (*heads, tokens, n), x=query, y=keys, transpose_y=True)
            for n, (keys, _) in zip(slots, parts, strict=True)
        ]
        whole = (*heads, tokens, sum(slots))
        joined = self.add("concat", dtype, whole, values=scores, axis=-1, interleave=False)
        weights = self.softmax_of(dtype, self.scored(dtype, joined, self.rng.choice([1, tokens])))
        made = [(dtype, score.shape) for score in scores]
        split = self.several("split", made, x=weights, split_sizes=slots, axis=-1)
        products = [
            self.add("matmul", dtype, query.shape, x=x, y=values)
            for x, (_, values) in zip(split, parts, strict=True)
        ]
        self.add("add", dtype, query.shape, x=products[0], y=products[1])
