"""Modules that only the book's pages import: figures, diagrams, fits, published measurements."""

import logging
import os
import warnings

__all__ = ["quiet_notebook"]


def quiet_notebook() -> None:
    """Keep a notebook's stderr for faults: no bars and no advice of coremltools and transformers,
    no lines of the former at import off a Mac, no hint that Jupyter's widgets are not installed,
    and no word that another page is converting the same model.

    To be called before either is imported.
    """
    os.environ |= {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for name in ("coremltools", "ane_book"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="IProgress not found")
