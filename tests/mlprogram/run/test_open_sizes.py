"""Programs that leave sizes open give in C what they give step by step, whatever the sizes are."""

from pathlib import Path
from random import Random

from _long import long_but
from _package import const, op, typed, write
from mlprogram import MLProgram
from mlprogram.errors import InvalidPackage
from mlprogram.kernels import native
from mlprogram.run.lines import Line, Row, is_straight
import numpy as np
import pytest
from test_stretches import equal

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

OPEN, SIZE, SLOTS = typed("fp32", 2, None, 6), typed("int32"), 16
STATE = typed("fp32", 2, SLOTS, 6)

MIDDLE = const([True, False, True])  # a mask of slices along the middle axis alone

#: Sizes of x and y in calls one after the other: one of them grows, or both, or they come again.
CALLS = [(3, 4), (3, 5), (3, 6), (3, 9), (1, 7), (1, 8), (1, 3), (1, 12), (4, 4), (5, 5), (7, 7),
         (11, 11), (2, 9), (2, 9), (2, 9), (3, 6), (9, 6), (10, 6), (8, 6)]  # fmt: skip


class Random2:
    """Random ops on floats (2, n, 6), and on the sizes n, of which slices and more are made."""

    def __init__(self, seed: int):
        self.rng, self.operations = Random(f"open {seed}"), []
        self.values, self.sizes = {"x": "x", "y": "y"}, {}  # name -> what n is the same as
        self.size("x"), self.size("y")
        kinds = [self.size, self.count, self.count, self.cut, self.cut, self.join, self.arithmetic]
        kinds += [self.function, self.turn, self.places, self.update, self.fold]
        for _ in range(12):
            self.rng.choice(kinds)(self.rng.choice([*self.values]))

    def write(self, path: Path) -> Path:
        inputs = {"x": OPEN, "y": OPEN, "s": typed("fp32", 2, SLOTS, 6, kind="state")}
        outputs = self.rng.sample([*self.values], min(3, len(self.values)))
        return write(path, self.operations, outputs, inputs)

    def op(self, kind: str, type_, **inputs) -> str:
        name = f"v{len(self.operations)}"
        self.operations.append(op(kind, {name: type_}, **inputs))
        return name

    def value(self, like: str, kind: str, **inputs) -> None:
        self.values[self.op(kind, OPEN, **inputs)] = like

    def size(self, x: str) -> None:
        shape = self.op("shape", typed("int32", 3), x=x)
        found = self.op("gather", SIZE, x=shape, indices=const(1), axis=const(0))
        self.sizes[found] = self.values[x]

    def count(self, _: str) -> None:
        kind = self.rng.choice(["add", "sub", "sub", "mul", "floor_div", "minimum"])
        x, y = self.rng.choices([*self.sizes], k=2)
        other = y if self.rng.random() < 0.5 else const(self.rng.randrange(1, 4))
        made = self.op(kind, SIZE, x=x, y=other)
        self.sizes[made] = made

    def vector(self, size: str) -> str:
        one = self.op("expand_dims", typed("int32", 1), x=size, axes=const([0]))
        parts = [const([0]), one, const([6])]
        return self.op("concat", typed("int32", 3), values=parts, axis=const(0),
                       interleave=const(False))  # fmt: skip

    def cut(self, x: str) -> None:
        size = self.rng.choice([*self.sizes])
        at = self.rng.choice([self.vector(size), const([0, self.rng.randrange(-4, 5), 0])])
        first = self.rng.random() < 0.5
        given = {"begin": const([0, 0, 0]), "end": const([2, 0, 6])}
        given["begin" if first else "end"] = at
        given["begin_mask"] = const([True, not first, True])
        given["end_mask"] = const([True, first, True])
        self.value(f"cut{len(self.operations)}", "slice_by_index", x=x, **given)

    def join(self, x: str) -> None:
        y = self.rng.choice([*self.values])
        self.value(f"join{len(self.operations)}", "concat", values=[x, y], axis=const(1),
                   interleave=const(False))  # fmt: skip

    def arithmetic(self, x: str) -> None:
        alike = [name for name, like in self.values.items() if like == self.values[x]]
        kind = self.rng.choice(["add", "sub", "mul"])
        self.value(self.values[x], kind, x=x, y=self.rng.choice(alike))

    def function(self, x: str) -> None:
        kind = self.rng.choice(["silu", "relu", "exp", "softmax"])
        more = {"axis": const(-1)} if kind == "softmax" else {}
        self.value(self.values[x], kind, x=x, **more)

    def turn(self, x: str) -> None:
        turned = self.op("transpose", typed("fp32", None, 6, 2), x=x, perm=const([1, 2, 0]))
        self.value(self.values[x], "transpose", x=turned, perm=const([2, 0, 1]))

    def places(self, x: str) -> None:
        """The numbers from one on, as many as x is long or as some size says, times x."""
        own = [name for name, like in self.sizes.items() if like == self.values[x]]
        size = self.rng.choice(own or [*self.sizes])
        end = self.op("add", SIZE, x=size, y=const(1))
        line = self.op("range_1d", typed("int32", None), start=const(1), end=end, step=const(1))
        real = self.op("cast", typed("fp32", None), x=line, dtype=const("fp32"))
        column = self.op("expand_dims", typed("fp32", None, 1), x=real, axes=const([1]))
        self.value(self.values[x], "mul", x=x, y=column)

    def update(self, x: str) -> None:
        """Write x to the state from some size on."""
        size, own = self.rng.choice([*self.sizes]), self.op("shape", typed("int32", 3), x=x)
        length = self.op("gather", SIZE, x=own, indices=const(1), axis=const(0))
        last = self.vector(self.op("add", SIZE, x=size, y=length))
        old = self.op("read_state", STATE, input="s")
        here = {"begin": self.vector(size), "end": last, "begin_mask": MIDDLE, "end_mask": MIDDLE}
        new = self.op("slice_update", STATE, x=old, update=x, **here)
        self.operations.append(op("write_state", {}, input="s", data=new))
        now = self.op("read_state", STATE, input="s")
        self.value(f"state{len(self.operations)}", "identity", x=now)

    def fold(self, x: str) -> None:
        made = self.op("reshape", typed("fp32", 2, None, 3), x=x, shape=const([2, -1, 3]))
        self.value(self.values[x], "reshape", x=made, shape=const([2, -1, 6]))


def compare(program: MLProgram, seed: int) -> int:
    """Calls of many sizes, with the runner and without; how many of them were right."""
    plain = MLProgram(program.package, without=["runner"], _shared=program._shared)
    ours, theirs = program.make_state(), plain.make_state()
    rng, right = np.random.default_rng(seed), 0
    for x, y in CALLS:
        given = {n: rng.normal(size=(2, m, 6)).astype(np.float32) for n, m in (("x", x), ("y", y))}
        answers: list = []
        for one, state in ((program, ours), (plain, theirs)):
            try:
                answers.append(one.predict(given, state))
            except InvalidPackage as error:
                answers.append(str(error))
        found, wanted = answers
        if isinstance(wanted, str):
            assert found == wanted, (x, y)
        else:
            assert not isinstance(found, str), (x, y, found)
            assert all(equal(found[name], wanted[name]) for name in wanted), (x, y)
            right += 1
        assert equal(ours.read_state("s"), theirs.read_state("s")), (x, y)
    return right


@pytest.mark.parametrize("part", long_but(range(40), 0))
def test_random_programs(part, tmp_path):
    """320 in all."""
    right = in_c = 0
    for seed in range(8 * part, 8 * part + 8):
        program = MLProgram(Random2(seed).write(tmp_path / f"{seed}.mlpackage"))
        right += compare(program, seed)
        in_c += sum(family.run is not None for family in program.compiled.run.families)
    assert right > 8 * 3 and in_c > 8


def test_a_line_is_what_three_places_say():
    def made(n: int) -> list:
        return [n, (2 * n + 1, [7, "a"]), (), -n]

    places = (3, 8, 20)
    assert is_straight(places, [made(n) for n in places])
    line = Line(places, [made(3), made(20)])
    assert line.at(11) == (11, (23, (7, "a")), (), -11)
    assert line.at(3) == (3, (7, (7, "a")), (), -3)
    assert Line(places, [made(3), made(3)]).at(11) == made(3)
    assert Row(places, [[3, 7], [20, 7]]).at(5).tolist() == [5, 7]
    for wrong in ([n * n for n in places], [n // 2 for n in places], [1, 1, 2]):
        assert not is_straight(places, [[n] for n in wrong])
    assert not is_straight(places, [[1], [1], [1, 1]])
    assert not is_straight(places, [["a"], ["a"], ["b"]])


def test_an_attended_cache_is_one_stretch_of_any_length(tmp_path):
    """x is written to the state after as many as y says, which is read up to there."""
    made = Random2(0)
    made.operations.clear(), made.values.clear(), made.sizes.clear()
    made.values |= {"x": "x", "y": "y"}
    made.size("x"), made.size("y")
    n, m = made.sizes
    past = made.op("sub", SIZE, x=m, y=n)
    old = made.op("read_state", STATE, input="s")
    here = {"begin": made.vector(past), "end": made.vector(m), "begin_mask": MIDDLE}
    new = made.op("slice_update", STATE, x=old, update="x", **here, end_mask=MIDDLE)
    made.operations.append(op("write_state", {}, input="s", data=new))
    now = made.op("read_state", STATE, input="s")
    here = {"begin": const([0, 0, 0]), "end": made.vector(m), "end_mask": MIDDLE}
    seen = made.op("slice_by_index", OPEN, x=now, **here)
    made.value("y", "add", x=seen, y="y")
    last = [*made.values][-1]
    program = MLProgram(made.write(tmp_path / "p.mlpackage"))
    state = program.make_state()
    for m in (3, 4, 5, 6, 7, 11, SLOTS):
        x, y = np.full((2, 2, 6), m, np.float32), np.zeros((2, m, 6), np.float32)
        found = program.predict({"x": x, "y": y}, state)[last]
        assert found.shape == y.shape and (found[:, m - 2 :] == m).all()
    families = program.compiled.run.families
    assert [(f.sizes[0], f.least, f.grows) for f in families] == [(2, 3, (False, True))]


def test_other_sizes_take_no_more_memory_for_their_source(tmp_path):
    ops = [op("add", {"a": OPEN}, x="x", y="x"), op("mul", {"y": OPEN}, x="a", y="x")]
    program = MLProgram(write(tmp_path / "p.mlpackage", ops, ["y"], {"x": OPEN}))
    counts = []
    for size in range(20, 0, -1):
        for rows in (size, 2 * size):
            program.predict({"x": np.ones((2, rows, 6), np.float32)})
        counts.append(len(program.plan.failures.sources))
    assert len(program.compiled.run.families) > 1
    assert counts[-1] == counts[1]
