"""Torch modules to packages: a block lowered once, stamped for every layer."""
