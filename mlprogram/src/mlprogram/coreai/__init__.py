"""Core AI beside Core ML: ML Programs as `.aimodel` assets, and their run on this machine.

    bridge.py     what can be written as an asset, and writes it
    graph.py      the graph of a function, op by op
    ops/          what each op of MIL is in Core AI's
    weights.py    compressed weights, carried as they are stored
    states.py     updates of a state that the runtime would mix up
    run.py        a backend on Core AI's runtime
    compare.py    the first op at which it and the executor part

It needs coreai-core, of the extra `coreai`; nothing else in the library imports it.
"""

from mlprogram.coreai.bridge import check_installed, missing_ops, save_asset

__all__ = ["check_installed", "missing_ops", "save_asset"]
