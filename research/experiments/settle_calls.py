"""Claim call-private: 0.07 to 0.23 ms a call, or 0.75 ms for the whole way.

Private interfaces are not asked; what a call of Core ML costs is: the same work as one program of
32 layers and as programs of 16, 8 and 4. Time over layers is a line; where it starts is the call.

Question: What does a call of Core ML cost, before any work?
"""

from _settle import Case, all_found, conv, graph, main, mb, milliseconds
import numpy as np

LAYERS = (4, 8, 16, 32)


def write(layers: int):
    def build(x):
        for _ in range(layers):
            x = mb.relu(x=conv(x, 64, (3, 3)))
        return mb.identity(x=x, name="y")

    return lambda path: graph(path, [(1, 64, 32, 32)], build)


def decide(results):
    times = [milliseconds(results, f"{layers} layers") for layers in LAYERS]
    if np.isnan(times).any():
        return all_found(results)
    slope, start = np.polyfit(LAYERS, times, 1)
    return (
        f"a call takes {start:.3f} ms and {slope * 1e3:.1f} microseconds for each layer, through "
        "Core ML and coremltools"
    )


CASES = [Case(f"{layers} layers", write(layers)) for layers in LAYERS]

if __name__ == "__main__":
    main("calls", "call-private", CASES, decide)
