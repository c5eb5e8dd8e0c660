"""Claims flexible-cpu and state-flexible: shapes that may change, with and without a state.

Off the engine (coremltools #835, #2600), at the default shape alone (#1764), or on it with a hint
(Apple). Each is asked at its default shape and at another.

Question: Does a program of flexible shapes run on the engine, with a state and without?
"""

from _settle import Case, all_found, ct, main, save
import numpy as np
import torch

DEFAULT, OTHER = 64, 32
SHAPES = {
    "fixed": lambda: (1, 128, 1, DEFAULT),
    "range": lambda: (1, 128, 1, ct.RangeDim(1, 128, default=DEFAULT)),
    "enumerated": lambda: ct.EnumeratedShapes(
        [(1, 128, 1, OTHER), (1, 128, 1, DEFAULT)], default=(1, 128, 1, DEFAULT)
    ),
}


class Stack(torch.nn.Module):
    """Enough 1x1 convolutions to be worth the engine; `held` is a state, where it is one."""

    def __init__(self, state: bool):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(128, 128, 1) for _ in range(24))
        self.register_buffer("held", torch.zeros(1, 128, 1, 1))
        self.state = state

    def forward(self, x):
        if self.state:
            self.held[:] = self.held + 1
            x = x + self.held
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def write(kind: str, state: bool):
    def make(path):
        module = Stack(state).eval()
        with torch.no_grad():
            traced = torch.jit.trace(module, torch.zeros(1, 128, 1, DEFAULT), check_trace=False)
        inputs = [ct.TensorType("x", SHAPES[kind](), dtype=np.float16)]
        outputs = [ct.TensorType("y", dtype=np.float16)]
        shape = ct.TensorType(shape=(1, 128, 1, 1), dtype=np.float16)
        states = {"states": [ct.StateType(shape, "held")]} if state else {}
        save(path, traced, inputs=inputs, outputs=outputs, **states)

    return make


def columns(count: int) -> dict:
    return {"x": np.linspace(-1, 1, 128 * count, dtype=np.float16).reshape(1, 128, 1, count)}


def decide(results):
    return all_found(results)


CASES = [
    Case(
        f"{kind}{', a state' if state else ''}, {count} columns",
        write(kind, state),
        columns(count),
    )
    for kind in SHAPES
    for state in (False, True)
    for count in ((DEFAULT,) if kind == "fixed" else (DEFAULT, OTHER))
    if not (state and kind == "enumerated")  # coremltools takes no enumerated shapes with states
]

if __name__ == "__main__":
    main("flexible", "flexible-cpu, state-flexible", CASES, decide)
