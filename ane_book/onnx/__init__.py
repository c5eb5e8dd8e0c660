"""ONNX files: language models as weights, and any graph as a Core ML package.

There are three doors:

    decoder/    `ane_book.weights.open_source` and `ane-book convert` of a bundle come in here: a
                graph recognised as one of our architectures, whose tensors are a source of weights
    graph/      `convert_graph`, and `ane-book convert model.onnx`: any graph, an operator at a time
    check/      `check_graph`: whether such a package computes what ONNX Runtime makes of the graph

and what they read files with:

    file.py        the file, its graph, the tensors beside it
    evaluate.py    what a node gives for operands that are known
"""
