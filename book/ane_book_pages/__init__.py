"""Modules that only the book's pages import: figures, diagrams, fits, published measurements."""
