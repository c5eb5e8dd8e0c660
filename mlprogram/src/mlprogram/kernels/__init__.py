"""Kernels: faster replacements of ops and groups of ops.

table.py      the list of kernels: name, patterns, preparing function
pattern.py    patterns of ops, and the search for them
graph.py      a function's def-use graph, and the match of a pattern
groups/       kernels of groups: attention, norms, rotary embedding, sizes
single.py     kernels of single ops
products.py   products with a constant weight
plainly.py    the fallback of a group, for sizes that its kernel does not take
native/       the compiled kernels: their C sources, compilation and calls
"""
