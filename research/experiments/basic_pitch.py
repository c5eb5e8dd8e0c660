"""One network, three programs: basic-pitch's ONNX file, our conversion of it, and its own package.

basic-pitch (Spotify, Apache-2.0) finds the notes in a recording. Its wheel has the network as
`nmp.onnx` and, by Apple's converter from TensorFlow, as `nmp.mlpackage`. The same sounds go through
onnxruntime, and through the executor with what we convert and with what they did. Nothing of the
wheel is kept here:

    pip download --no-deps basic-pitch==0.4.0 && unzip basic_pitch-0.4.0-py2.py3-none-any.whl
    python research/experiments/basic_pitch.py basic_pitch/saved_models/icassp_2022

Written: research/measurements/basic_pitch.json.
"""

import json
from pathlib import Path
import sys
import tempfile

from mlprogram import MLProgram
from mlprogram.onnx.graph import convert_graph
from mlprogram.package.reader import Package
import numpy as np
import onnx
import onnxruntime

RESULT = Path(__file__).parents[1] / "measurements" / "basic_pitch.json"
SAMPLES, RATE = 43_844, 22_050  # two seconds, as the network takes them
WINDOWS = 8
#: The outputs' names in the ONNX file -> in the package.
NAMES = {"StatefulPartitionedCall:0": "Identity", "StatefulPartitionedCall:1": "Identity_1",
         "StatefulPartitionedCall:2": "Identity_2"}  # fmt: skip


def sounds() -> list[np.ndarray]:
    """Windows (1, n, 1) of chords: up to four notes of a piano's range, each with overtones that
    fade, over noise; the first one is silence."""
    random, time = np.random.default_rng(0), np.arange(SAMPLES) / RATE
    windows = [np.zeros(SAMPLES)]
    for count in range(1, WINDOWS):
        window = random.normal(0, 1e-3, SAMPLES)
        for _ in range(1 + count % 4):
            pitch, start = 440 * 2 ** (random.integers(-30, 30) / 12), random.uniform(0, 1.2)
            after = np.maximum(time - start, 0)
            for overtone in range(1, 6):
                wave = np.sin(2 * np.pi * pitch * overtone * after) * np.exp(-3 * after)
                window += (after > 0) * wave / overtone**1.5 / 5
        windows.append(window)
    return [window.astype(np.float32)[None, :, None] for window in windows]


def through_onnxruntime(path: Path, windows: list) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path)
    names, (given,) = [o.name for o in session.get_outputs()], session.get_inputs()
    found = [session.run(names, {given.name: window}) for window in windows]
    columns = zip(*found, strict=True)
    return {NAMES[n]: np.concatenate(c) for n, c in zip(names, columns, strict=True)}


def through_the_executor(path: Path, windows: list, precision: str) -> dict[str, np.ndarray]:
    program = MLProgram(path, precision=precision)
    (given,) = program.inputs
    found = [program.predict({given: window}) for window in windows]
    return {
        name.replace("StatefulPartitionedCall_", "Identity_").replace("Identity_0", "Identity"):
        np.concatenate([row[name] for row in found]).astype(np.float32)
        for name in program.outputs
    }  # fmt: skip


def apart(a: dict, b: dict) -> float:
    """The largest difference of all outputs, which are probabilities; of windows with a sound."""
    return max(float(np.abs(a[name][1:] - b[name][1:]).max()) for name in a)


def not_numbers(found: dict) -> int:
    """How many of the numbers that silence gives are none."""
    return sum(int(np.isnan(array[0]).sum()) for array in found.values())


def operations(path: Path) -> int:
    (function,) = Package(path).functions.values()
    return sum(op.type != "const" for op in function.operations())


def main() -> None:
    folder, windows = Path(sys.argv[1]), sounds()
    theirs = folder / "nmp.mlpackage"
    graph = onnx.load(folder / "nmp.onnx").graph
    shapes = {graph.input[0].name: windows[0].shape}
    oracle = through_onnxruntime(folder / "nmp.onnx", windows)
    found, counts = {}, {"theirs": operations(theirs)}
    with tempfile.TemporaryDirectory() as place:
        for precision in ("fp32", "fp16"):
            ours = convert_graph(
                folder / "nmp.onnx", Path(place) / f"{precision}.mlpackage", precision, shapes
            )
            counts[f"ours, {precision}"] = operations(ours)
            made = through_the_executor(ours, windows, precision)
            package = through_the_executor(theirs, windows, precision)
            found[precision] = {
                "ours to onnxruntime": apart(made, oracle),
                "theirs to onnxruntime": apart(package, oracle),
                "ours to theirs": apart(made, package),
                "silence, ours": not_numbers(made),
                "silence, theirs": not_numbers(package),
            }
    result = {"version": "0.4.0", "sounds": len(windows) - 1, "onnx_nodes": len(graph.node),
              "numbers_a_window": sum(array[0].size for array in oracle.values()),
              "silence, onnxruntime": not_numbers(oracle), "precision": found,
              "operations": counts}  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
