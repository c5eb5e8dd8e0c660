"""Claims sum-most and subnormals-lost: a sum inside a product that passes 32,768 is lost (M6 study,
ANEForge), or summed in single precision (coreai-model-zoo); one below 2^-14 is 0 (anemll-forge), or
only its small products are (M6 study).

Sums that half precision can hold to the end (65,504), on both sides of 32,768; one that passes it
on the way and comes back; and sums around and below 2^-14, of four products.

Question: What becomes of a sum inside a product that passes 32,768, or that is below 2^-14?
"""

from _settle import Case, conv, graph, main, mb
import numpy as np

SUMS = (30_000, 32_000, 32_736, 32_768, 40_000, 60_000)
SMALL = (13, 15, 17, 20)  # sums of 2 to the minus so many
DEPTH, COLUMNS = 1024, 1024


def product(there_and_back: bool):
    """Every output is the sum of its column's inputs, in 1,024 equal rows; then enough to do."""

    def build(x):
        weight = np.ones((DEPTH, DEPTH, 1, 1), np.float16)
        if there_and_back:
            weight[:, DEPTH // 2 :] = -1
        y = mb.conv(x=x, weight=weight, name="y")
        small = mb.mul(x=y, y=np.float16(2**-12))
        for _ in range(4):  # work that makes the engine worth it
            small = mb.relu(x=conv(small, DEPTH))
        return y, mb.identity(x=small, name="work")

    return lambda path: graph(path, [(1, DEPTH, 1, COLUMNS)], build)


def equal(total: float) -> dict:
    """Inputs whose sum is that."""
    return {"x": np.full((1, DEPTH, 1, COLUMNS), total / DEPTH, np.float16)}


def few(total: float) -> dict:
    """Inputs of which only four of a column are not 0, and whose sum is that."""
    x = np.zeros((1, DEPTH, 1, COLUMNS), np.float16)
    x[:, :4] = total / 4  # 2^-22 at least, which half precision has
    return {"x": x}


def given(one) -> str:
    found = one.outputs.get("y")
    return one.verdict if found is None else f"{float(np.asarray(found).ravel()[0]):,.6g}"


def decide(results):
    said = "; ".join(f"{total:,} gives {given(results[f'sum of {total:,}'])}" for total in SUMS)
    back = given(results["60,000 and back to 0"])
    small = "; ".join(f"2^-{n} gives {given(results[f'sum of 2^-{n}'])}" for n in SMALL)
    return f"{said}; a sum that passes 60,000 and comes back to 0 gives {back}; {small}"


CASES = [Case(f"sum of {total:,}", product(False), equal(total)) for total in SUMS]
CASES += [Case(f"sum of 2^-{n}", product(False), few(2.0**-n)) for n in SMALL]
CASES.append(Case("60,000 and back to 0", product(True), equal(120_000)))

if __name__ == "__main__":
    main("sums", "sum-most", CASES, decide)
