"""Validate a program before anything of it is compiled or run."""
