"""ONNX Runtime, whose outputs are the reference of a graph where it is installed."""

import os
from pathlib import Path


def open_session(model: Path | bytes, threads: int = 0):
    """An `onnxruntime.InferenceSession` of a graph as it is written; threads: 0 for its default.

    Official builds have telemetry on, which writes an identifier to the user's cache; here it is
    off, as ONNX Runtime's Privacy.md says to do it. Raises ImportError where it is not installed,
    and errors of its own kinds for a graph that it does not run.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when it is imported
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its own lines go to stderr
    options.intra_op_num_threads = threads
    # Operators that it joins round otherwise where they quantise.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
