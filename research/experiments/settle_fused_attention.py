"""Claim fused-attention: Core ML's one op is wrong on the engine of iOS 26 (ExecuTorch #15833).

The M6 study saw it taken by an M4 and compared no numbers; here they are compared.

Question: Are the numbers of Core ML's fused attention right on this Mac's engine?
"""

from _settle import Case, graph, main, mb, random
import numpy as np

SHAPE = (1, 8, 128, 64)  # heads, tokens, head size
INPUTS = {name: random(*SHAPE, seed=i) for i, name in enumerate("qkv")}


def fused(q, k, v):
    return mb.scaled_dot_product_attention(query=q, key=k, value=v)


def plain(q, k, v):
    scores = mb.mul(x=mb.matmul(x=q, y=k, transpose_y=True), y=np.float16(64**-0.5))
    return mb.matmul(x=mb.softmax(x=scores, axis=3), y=v)


def eight(attend):
    """Eight in a row: enough work to go to the engine."""

    def build(q, k, v):
        for _ in range(7):
            q = mb.add(x=q, y=attend(q, k, v))
        return attend(q, k, v)

    return lambda path: graph(path, [SHAPE] * 3, build)


def decide(results):
    said = "; ".join(f"{name}: {one.verdict} ({one.reason})" for name, one in results.items())
    wrong = results["one op"].verdict == "numbers"
    return f"the fused op is {'wrong' if wrong else 'not seen to be wrong'} here. {said}"


CASES = [
    Case("one op", eight(fused), INPUTS),
    Case("products and softmax", eight(plain), INPUTS),
]

if __name__ == "__main__":
    main("fused-attention", "fused-attention", CASES, decide)
