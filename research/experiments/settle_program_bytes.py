"""Claims program-small, program-250mb, program-2gb: bytes of weights, from 0.1 MB to 2.3 GB.

If 14 MB is a floor, the small ones stay on the CPU however much they compute; if it follows from
the planner's costs, width of the activations decides. If 250 MB or 2 GB is a ceiling, the large
ones leave the engine.

Question: From how few and up to how many bytes of weights does a program run on the engine?
"""

from _settle import Case, all_found, conv, graph, main, mb

#: megabytes -> (channels, layers), 1x1 convolutions in half precision
SIZES = {0.1: (128, 4), 1: (512, 2), 14: (1024, 7), 20: (1024, 10), 100: (2048, 12),
         250: (2048, 30), 500: (2048, 60), 1000: (4096, 30), 2000: (4096, 60),
         2300: (4096, 69)}  # fmt: skip
COLUMNS = (1, 64, 4096)


def write(channels: int, layers: int, columns: int):
    def build(x):
        for _ in range(layers):
            x = mb.relu(x=conv(x, channels))
        return mb.identity(x=x, name="y")

    return lambda path: graph(path, [(1, channels, 1, columns)], build)


def decide(results):
    return all_found(results)


CASES = [
    Case(f"{size:g} MB, {columns} columns", write(*cut, columns), large=size > 14 or columns > 64)
    for size, cut in SIZES.items()
    for columns in COLUMNS
    if columns < 4096 or size < 2  # what would take minutes on the CPU says no more
]

if __name__ == "__main__":
    main("program-bytes", "program-small, program-250mb, program-2gb", CASES, decide)
