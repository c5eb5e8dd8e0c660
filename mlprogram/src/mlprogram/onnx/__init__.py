"""ONNX files: read a language model's weights, or convert any graph to a Core ML package.

decoder/       recognises a graph as one of our architectures and reads its tensors as a
               `WeightSource`: `ane_book.weights.open_source`, `ane-book convert FOLDER`
graph/         converts any graph, operator by operator: `convert_graph`,
               `mlprogram convert model.onnx`
check/         compares such a package with ONNX Runtime: `check_graph`

runtime.py     opens ONNX Runtime's session
file.py        reads the file, its graph and the tensors beside it
evaluate.py    computes a node whose operands are constants
"""
