"""Claim conv-height: a kernel more than 31 high is refused (M6 study), or never (ANEForge).

Question: Does the engine take a convolution kernel more than 31 high?
"""

from _settle import Case, all_found, between, conv, main

HEIGHTS = (15, 31, 32, 48)


def tall(height: int):
    return lambda path: between(path, lambda x: conv(x, 64, (height, 1)), (1, 64, 64, 32))


def decide(results):
    said = all_found(results)
    if results["31 high"].resident:
        word = "is not" if results["32 high"].resident else "is"
        return f"more than 31 {word} refused. {said}"
    return f"undecided: 31 is not on the engine either. {said}"


CASES = [Case(f"{height} high", tall(height)) for height in HEIGHTS]

if __name__ == "__main__":
    main("conv-height", "conv-height", CASES, decide)
