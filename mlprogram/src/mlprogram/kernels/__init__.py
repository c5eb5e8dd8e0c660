"""What makes it fast: which op or group of ops gets which kernel.

table.py      the list: name, patterns, what prepares it
pattern.py    patterns of ops; graph.py, where a function has them
groups/       attention, norms, rotary embedding, sizes: groups that run as one
single.py     single ops, products.py those with a constant weight
plainly.py    the ops as they stand, where sizes turn out otherwise
native/       the compiled kernels: their C, how it is made and called
"""
