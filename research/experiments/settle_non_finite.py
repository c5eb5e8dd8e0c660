"""Claim non-finite: infinity and NaN do not survive the engine (Apple's rules, FluidAudio), or a
mask of -inf gives the bits of one of -10,000 (CoreML-LLM).

Question: Do infinity and NaN survive the engine?
"""

from _settle import Case, conv, graph, main, mb, random
import numpy as np

SHAPE = (1, 64, 32, 32)


def softmax(path):
    def build(x, mask):
        for _ in range(4):
            x = conv(x, 64, (3, 3))
        return mb.softmax(x=mb.add(x=x, y=mask), axis=3, name="y")

    graph(path, [SHAPE, (1, 1, 1, 32)], build)


def passed_on(path):
    """y is x, after work that does not touch it."""

    def build(x):
        y = x
        for _ in range(4):
            y = conv(y, 64, (3, 3))
        return mb.mul(x=x, y=np.float16(1.0), name="y"), mb.identity(x=y, name="work")

    graph(path, [SHAPE], build)


def masked(value: float) -> dict:
    mask = np.zeros((1, 1, 1, 32), np.float16)
    mask[..., 16:] = value
    return {"x": random(*SHAPE), "mask": mask}


def with_one(value: float) -> dict:
    x = random(*SHAPE)
    x[0, 0, 0, 0] = value
    return {"x": x}


def first(one) -> str:
    found = one.outputs.get("y")
    return one.verdict if found is None else str(np.asarray(found).ravel()[0])


def decide(results):
    masks = [results[name].outputs.get("y") for name in ("mask of -inf", "mask of -10000")]
    same = all(mask is not None for mask in masks) and np.array_equal(*masks)
    said = "; ".join(f"{name}: {first(one)}" for name, one in results.items() if "mask" not in name)
    return f"a mask of -inf {'gives' if same else 'does not give'} the bits of -10,000; {said}"


CASES = [
    Case(f"mask of {value:g}", softmax, masked(value)) for value in (-np.inf, -10_000, -40_000)
]
CASES += [Case(f"{value:g} passed on", passed_on, with_one(value)) for value in (np.inf, np.nan)]

if __name__ == "__main__":
    main("non-finite", "non-finite", CASES, decide)
