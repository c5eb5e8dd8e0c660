"""Kernels of groups of ops: the patterns in which converters write them, and what runs them."""
