"""Kernels: faster replacements of ops and groups of ops.

table.py      the list of kernels: name, patterns, preparing function
pattern.py    patterns of ops, and the search for them
graph.py      a function's def-use graph, and the match of a pattern
groups/       kernels of groups: attention, norms, rotary embedding, sizes
single.py     kernels of single ops
products.py   products with a constant weight
plainly.py    the fallback of a group, for sizes that its kernel does not take
native/       the compiled kernels: their C sources and calls
library.py    the library that is compiled of them, once
compiled.py   its functions, and the tables of calls that it runs
threads.py    how many threads a call has
"""
