"""ONNX files: convert any graph to a Core ML package, and hold a package to its source.

    graph/       converts any graph, operator by operator: `convert_graph`
    check/       compares such a package with ONNX Runtime: `check_graph`
    source/      the first op at which a package and its ONNX or PyTorch source part
    runtime.py   opens ONNX Runtime's session
    file.py      reads the file, its graph and the tensors beside it
    evaluate.py  computes a node whose operands are constants
"""
