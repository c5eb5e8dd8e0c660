"""The edges of a program: what comes in unused, goes out twice, is empty, or is named oddly."""

from _foreign import IN_SINGLE, WAYS, agree, build, halved, normal, package, reference
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
import numpy as np
import torch


def test_an_input_and_a_constant_and_one_value_twice_as_outputs(tmp_path):
    fixed = normal(2, 3, seed=1)

    @build(tmp_path / "p.mlpackage", ((2, 3), types.fp32), ((4,), types.int32), **IN_SINGLE)
    def path(x, unused):
        y = mb.mul(x=x, y=np.float32(2), name="y")
        constant = mb.const(val=fixed, name="constant")
        again, wide = mb.identity(x=y, name="again"), mb.expand_dims(x=y, axes=[0])
        rows = mb.tile(x=wide, reps=[4, 1, 1], name="rows")
        return x, y, again, mb.identity(x=constant, name="fixed"), rows, x

    x, unused = normal(2, 3), np.arange(4, dtype=np.int32)
    want = {"x": x, "y": 2 * x, "again": 2 * x, "fixed": fixed, "rows": np.stack([2 * x] * 4)}
    want = {name: want.get(name, x) for name in MLProgram(path).outputs}
    assert len(want) >= 5
    for (outputs,) in agree(path, [{"x": x, "unused": unused}], [want]):
        for value in outputs.values():  # each is the caller's own, and no element another's
            value += 1
        assert all(np.array_equal(outputs[name], want[name] + 1) for name in want)
    np.testing.assert_array_equal(x, normal(2, 3))
    agree(path, [{"x": x, "unused": unused}], [want])


def test_integers_bools_scalars_and_five_axes(tmp_path):
    @build(
        tmp_path / "p.mlpackage", ((2, 1, 3, 2, 2), types.fp32), ((3,), types.int32), **IN_SINGLE
    )
    def path(x, n):
        scalar = mb.reduce_sum(x=mb.cast(x=n, dtype="fp32"), axes=[0], keep_dims=False)
        folded = mb.transpose(x=x, perm=[4, 0, 2, 1, 3])
        return (
            mb.add(x=folded, y=scalar, name="five"),
            mb.mod(x=n, y=np.int32(4), name="mod"),
            mb.floor_div(x=n, y=np.int32(4), name="quotient"),
            mb.greater(x=n, y=np.int32(0), name="positive"),
            mb.reduce_argmax(x=n, axis=0, keep_dims=False, name="where"),
            mb.identity(x=scalar, name="scalar"),
        )

    x, n = normal(2, 1, 3, 2, 2), np.array([7, -3, -9], np.int32)
    want = {
        "five": x.transpose(4, 0, 2, 1, 3) + np.float32(n.sum()),
        "mod": np.fmod(n, 4),
        "quotient": n // 4,
        "positive": np.float32(n > 0),  # coremltools casts it: Core ML gives no bools
        "where": np.int32(0),
        "scalar": np.float32(n.sum()),
    }
    agree(path, [{"x": x, "n": n}], [want])


class Tokens(torch.nn.Module):
    """Indices that come from a table, an order and a maximum, and pick in turn."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(300, 4)

    def forward(self, ids):
        y = self.embed(ids)
        best = y.topk(2, -1)[1]
        return y.argmax(-1), best, torch.gather(y, 2, best)


def test_integers_of_16_bits(tmp_path):
    """From iOS 17 on coremltools keeps indices in 16 bits where they fit, signed or not."""
    model, ids = halved(Tokens()), np.array([[299, 0, 2]], np.int32)
    path = package(
        model,
        tmp_path / "p.mlpackage",
        (torch.from_numpy(ids),),
        inputs=[ct.TensorType("ids", ids.shape, dtype=np.int32)],
        outputs=[ct.TensorType(name) for name in ("top", "best", "picked")],
        minimum_deployment_target=ct.target.iOS17,
    )
    operations = MLProgram(path).operations
    assert {"int16", "uint16"} <= {type_.dtype for o in operations for _, type_ in o.outputs}
    top, best, picked = reference(model, ids)
    want = {"top": top.astype(np.int32), "best": best.astype(np.int32), "picked": picked}
    agree(path, [{"ids": ids}], [want])


def test_empty_tensors(tmp_path):
    """What the data select may be nothing: it is joined, summed and gathered all the same."""

    @build(tmp_path / "p.mlpackage", ((5,), types.fp32), ((1,), types.int32), **IN_SINGLE)
    def path(x, n):
        end = mb.squeeze(x=n)
        places = mb.range_1d(start=np.int32(0), end=end, step=np.int32(1))
        head = mb.gather(x=x, indices=places, axis=0, name="head")
        tail = mb.slice_by_index(x=x, begin=n, end=[5], name="tail")
        hits = mb.non_zero(
            x=mb.cast(x=mb.greater(x=head, y=np.float32(0)), dtype="fp32"), name="hits"
        )
        both = mb.concat(values=[tail, head], axis=0, name="both")
        summed = mb.reduce_sum(x=head, axes=[0], keep_dims=True, name="summed")
        matrix = mb.matmul(
            x=mb.expand_dims(x=head, axes=[0]), y=mb.expand_dims(x=head, axes=[1]), name="matrix"
        )
        return head, tail, hits, both, summed, matrix

    def expected(x, n):
        head = x[:n]
        return {
            "head": head,
            "tail": x[n:],
            "hits": np.argwhere(head > 0).astype(np.int32),
            "both": np.concatenate([x[n:], head]),
            "summed": head.sum(keepdims=True),
            "matrix": (head[None] @ head[:, None]),
        }

    x = np.array([-1, 2, -0.5, 4, 3], np.float32)
    calls = [{"x": x, "n": np.array([n], np.int32)} for n in (0, 1, 3, 5)]
    agree(path, calls, [expected(x, int(call["n"][0])) for call in calls])


def test_several_outputs_of_an_op_and_some_that_nobody_takes(tmp_path):
    @build(tmp_path / "p.mlpackage", ((2, 6), types.fp32), **IN_SINGLE)
    def path(x):
        a, _, c = mb.split(x=x, split_sizes=[1, 3, 2], axis=1)
        one, two, three = mb.split(x=x, num_splits=3, axis=1)
        (whole,) = [mb.split(x=x, num_splits=1, axis=0)]
        whole = whole[0] if isinstance(whole, (list, tuple)) else whole
        values, _ = mb.topk(x=x, k=2, axis=1)
        _, indices = mb.topk(x=x, k=2, axis=1, ascending=True)
        return (
            mb.add(x=a, y=c, name="parts"),
            mb.concat(values=[three, one, two], axis=1, name="turned"),
            mb.add(x=whole, y=values.op.x, name="whole"),
            mb.identity(x=values, name="best"),
            mb.identity(x=indices, name="least"),
        )

    x = normal(2, 6)
    order = np.argsort(x, axis=1)
    want = {
        "parts": x[:, :1] + x[:, 4:],
        "turned": np.concatenate([x[:, 4:], x[:, :4]], 1),
        "whole": 2 * x,
        "best": np.take_along_axis(x, order[:, :-3:-1], 1),
        "least": order[:, :2].astype(np.int32),
    }
    agree(path, [{"x": x}], [want])


ODD = ["class", "1x", "x/y:0", "a b", "it's", 'say "x"', "états", "v0", "states", "x\\n", "{x}"]


def test_any_name_will_do(tmp_path):
    """Names are strings to the format: words of Python, quotes and spaces included."""

    @build(tmp_path / "p.mlpackage", ((3,), types.fp32), ((3,), types.fp32), **IN_SINGLE)
    def path(first, second):
        inner = mb.add(x=first, y=second, name="inner")
        return mb.mul(x=inner, y=first, name="result")

    model = ct.models.MLModel(str(path), skip_model_load=True)
    x, y = normal(3), normal(3, seed=1)
    for precision, optimize in WAYS:
        for i in range(len(ODD) - 3):
            first, second, inner, result = ODD[i : i + 4]
            new = dict(zip(("first", "second", "inner", "result"), ODD[i : i + 4], strict=True))
            program = MLProgram.from_mlmodel(Renamed(model, new), precision=precision)
            program = program if optimize else program.plain()
            assert list(program.inputs) == [first, second] and list(program.outputs) == [result]
            found = program.predict({first: x, second: y})
            np.testing.assert_allclose(found[result], (x + y) * x, rtol=1e-6)
            assert inner in dict(program.trace({first: x, second: y}))


def test_constants_may_stand_in_the_call(tmp_path):
    """The format lets an op hold its constants itself, be it `slice_update` or `write_state`."""
    weight, row = normal(4, 6, 1, 1), normal(1, 4, seed=1)

    @build(
        tmp_path / "p.mlpackage", ((1, 6, 1, 4), types.fp32), states=[(2, 4), (1, 4)], **IN_SINGLE
    )
    def path(x, memory, other):
        y = mb.conv(x=x, weight=weight, bias=weight[:, 0, 0, 0])
        positive = mb.greater(x=mb.squeeze(x=mb.reduce_max(x=y)), y=np.float32(0))
        y = mb.cond(
            pred=positive,
            _true_fn=lambda: mb.add(x=y, y=row),
            _false_fn=lambda: mb.mul(x=y, y=np.float32(3)),
        )
        after = mb.slice_update(
            x=mb.read_state(input=memory), update=np.float16(row), begin=[1, 0], end=[2, 4]
        )
        mb.coreml_update_state(state=memory, value=after)
        mb.coreml_update_state(state=other, value=np.float16(row))
        return mb.concat(values=[y, row[None, None]], axis=1, name="y")

    model = ct.models.MLModel(str(path), skip_model_load=True)
    for precision, optimize in WAYS:
        found = []
        for form in (model, Inlined(model)):
            program = MLProgram.from_mlmodel(form, precision=precision)
            program = program if optimize else program.plain()
            state = program.make_state()
            outputs = [program.predict({"x": s * normal(1, 6, 1, 4)}, state)["y"] for s in (1, 0)]
            found.append([*outputs, state.read_state("memory"), state.read_state("other")])
        assert not any(operation.type == "const" for operation in program.operations)
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(found[1][2], np.concatenate([0 * row, row]))
        np.testing.assert_array_equal(found[1][3], row)


class Inlined:
    """A model whose constants stand where they are used; coremltools writes an op for each."""

    def __init__(self, model):
        self.weights_dir, self.spec = model.weights_dir, model.get_spec()
        for function in self.spec.mlProgram.functions.values():
            self.inline(function.block_specializations[function.opset], {})

    def inline(self, block, known: dict) -> None:
        operations = list(block.operations)
        known = known | {
            o.outputs[0].name: o.attributes["val"] for o in operations if o.type == "const"
        }
        for operation in operations:
            for nested in operation.blocks:
                self.inline(nested, known)
            for argument in operation.inputs.values():
                for binding in argument.arguments:
                    if binding.name in known:
                        binding.value.CopyFrom(known[binding.name])
        del block.operations[:]
        block.operations.extend(o for o in operations if o.type != "const")

    def get_spec(self):
        return self.spec


class Renamed:
    """A model whose program calls its values by other names."""

    def __init__(self, model, names: dict[str, str]):
        self.weights_dir, self.spec = model.weights_dir, model.get_spec()
        function = self.spec.mlProgram.functions["main"]
        block = function.block_specializations[function.opset]
        for value in (
            *function.inputs,
            *self.spec.description.input,
            *self.spec.description.output,
        ):
            value.name = names[value.name]
        for operation in block.operations:
            for output in operation.outputs:
                output.name = names.get(output.name, output.name)
            for argument in operation.inputs.values():
                for binding in argument.arguments:
                    if binding.WhichOneof("binding") == "name":
                        binding.name = names.get(binding.name, binding.name)
        block.outputs[:] = [names[name] for name in block.outputs]

    def get_spec(self):
        return self.spec
