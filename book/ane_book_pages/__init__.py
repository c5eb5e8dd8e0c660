"""Modules that only the book's pages import: figures, fits, published measurements.

Importing it keeps a notebook's stderr for faults: no bars and no advice of coremltools and
transformers, no lines of the former at import off a Mac, no hint that Jupyter's widgets are not
installed, and no word that another page is converting the same model. A page imports it first.
"""

import logging
import os
import warnings

os.environ |= {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
for name in ("coremltools", "ane_book"):
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message="IProgress not found")
