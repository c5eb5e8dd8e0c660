"""Loaded as Python starts: packages that the variable HIDDEN names are not installed."""

import importlib.metadata
import os
import sys

HIDDEN = os.environ.get("HIDDEN", "").split()
found = importlib.metadata.entry_points


def entry_points(**asked) -> importlib.metadata.EntryPoints:
    kept = [each for each in found(**asked) if each.module.partition(".")[0] not in HIDDEN]
    return importlib.metadata.EntryPoints(kept)


sys.modules.update(dict.fromkeys(HIDDEN))
importlib.metadata.entry_points = entry_points
