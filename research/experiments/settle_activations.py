"""Claim activations: silu and tanh as they are, or written out (Apple's rules for Core AI).

Question: Are silu and tanh as fast through Core ML as their written-out forms?
"""

from _settle import Case, between, found, main, mb, milliseconds
import numpy as np

TWO, ONE = np.float16(2), np.float16(1)
FORMS = {
    "silu": lambda x: mb.silu(x=x),
    "x * sigmoid(x)": lambda x: mb.mul(x=x, y=mb.sigmoid(x=x)),
    "tanh": lambda x: mb.tanh(x=x),
    "2 * sigmoid(2x) - 1": lambda x: mb.sub(
        x=mb.mul(x=mb.sigmoid(x=mb.add(x=x, y=x)), y=TWO), y=ONE
    ),
}


def decide(results):
    each = (f"{found(results, name)}, {milliseconds(results, name):.3g} ms" for name in FORMS)
    return "; ".join(each)


def write(form):
    return lambda path: between(path, form)


CASES = [Case(name, write(form)) for name, form in FORMS.items()]

if __name__ == "__main__":
    main("activations", "activations", CASES, decide)
