"""Claims axis-most and axis-habit: the longest axis that the engine takes, and the habit of 16,384.

For a cap at 65,536: ANEForge, M6 study. Against: a head of 66,688 rows ran on an M4 Max. A 1x1
convolution over 64 columns with so many rows says which.

Question: What is the longest axis that the engine takes?
"""

from _settle import Case, all_found, conv, graph, main, mb

ROWS = (16_384, 16_385, 50_016, 65_536, 65_537, 66_688, 131_072)


def head(rows: int):
    def write(path):
        graph(path, [(1, 256, 1, 64)], lambda x: mb.identity(x=conv(x, rows), name="y"))

    return write


def decide(results):
    said = all_found(results)
    taken = [rows for rows in ROWS if results[f"{rows:,} rows"].resident]
    return f"{max(taken, default=0):,} rows are the most that ran on the engine. {said}"


CASES = [Case(f"{rows:,} rows", head(rows), large=rows > 65_537) for rows in ROWS]

if __name__ == "__main__":
    main("axis", "axis-most, axis-habit", CASES, decide)
