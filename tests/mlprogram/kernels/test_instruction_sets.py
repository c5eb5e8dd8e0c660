"""The compiled kernels, made for each instruction set that can be run here, against torch.

Arm is run by an emulator where there is one, and a compiler for it. That the kernels are fast is
measured by research/measurements/instruction_sets.py.
"""

from collections.abc import Iterator
import os
import re
import shutil
import struct
import subprocess
import sys

from _calls import build, run
from _long import long_but
from mlprogram.kernels import native
from mlprogram.kernels.native.ops import Activation, Rounding
from mlprogram.run import asked
import pytest
from test_native import BLOCK, FORMS, make
import torch
from torch import Tensor
from torch.nn import functional as F

HERE = shutil.which("cc")
ARM = "aarch64-linux-gnu-gcc"
SANITIZED = ["-fsanitize=undefined,address", "-fno-sanitize-recover=all", "-O1"]
BUILDS = {
    "AVX-512": ("AVX512", [HERE, "-march=x86-64-v4"]),
    "AVX2": ("AVX2", [HERE, "-march=x86-64-v3", "-O1"]),  # in half the time
    "plain": ("", [HERE, "-march=x86-64"]),
    "sanitized": ("", [HERE, "-march=native", *SANITIZED]),
    "sanitized plain": ("", [HERE, "-march=x86-64", *SANITIZED]),
    "NEON": (None, [ARM, "-static"]),
    "NEON, clang": (None, ["clang", "--target=aarch64-linux-gnu", "-static"]),
}
LEVELS = ["", "AVX2", "AVX512"]
AS_ONE, AS_OPS, SPELLED_OUT = Rounding


@pytest.fixture(autouse=True)
def same_numbers():
    """Of 100 drawings one has scores that half precision rounds further than a test allows."""
    torch.manual_seed(1)


@pytest.fixture(scope="module", params=long_but(BUILDS, "AVX2", "NEON"))
def program(request, tmp_path_factory) -> list[str]:
    """The command that runs calls of kernels made for an instruction set."""
    level, command = BUILDS[request.param]
    emulator = []
    if level is None:
        emulator = [shutil.which("qemu-aarch64")]
        if None in (*emulator, shutil.which(command[0]), shutil.which(ARM)):
            pytest.skip("no qemu-aarch64 or no compiler for Arm (qemu-user, gcc-aarch64-linux-gnu)")
    elif HERE is None or "x86" not in _machine(HERE):
        pytest.skip("no C compiler, or for another processor")
    elif level and level not in _levels():
        pytest.skip(f"this processor has no {level}")
    return [*emulator, str(build(command, tmp_path_factory.mktemp("calls")))]


def _machine(compiler: str) -> str:
    return subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True).stdout


def _levels() -> list[str]:
    found = torch.backends.cpu.get_cpu_capability()
    return LEVELS[: LEVELS.index(found) + 1] if found in LEVELS else [""]


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).double()


def _close(found: Tensor, expected: Tensor) -> bool:
    """Within a last place or two of the value, or so of the largest one, which sums round at."""
    exactness = 2**-10 if found.dtype == torch.float16 else 2**-18
    largest = float(expected.abs().max()) * 2**-16
    return torch.allclose(found.double(), expected.double(), rtol=exactness, atol=largest)


def _matrix(
    data: Tensor, table: Tensor | None, bias: Tensor, dtype: torch.dtype, block: int
) -> tuple:
    """`Matrix` of products.c."""
    half_weights = table is not None and table.dtype == torch.float16
    if table is not None and not (block and half_weights):
        table = table.float()
    rows, columns = data.shape
    columns *= 2 if data.dtype == torch.uint8 else 1
    group = rows // len(table) if data.dtype == torch.uint8 else 1
    kind = native.KINDS[data.dtype] | (dtype == torch.float16) << 32
    return (data, table, bias, rows, columns, group, kind, int(half_weights) | block << 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_products(program, dtype):
    calls, outputs, expected = [], [], []
    for form in FORMS:
        odd = 64 if form in ("palette", "blocks") else 57
        shapes = [(21, 192, 1), (9, odd, 1), (13, 160, 70), (7, odd, 5), (13, 800, 3), (7, 96, 41)]
        for rows, columns, tokens in shapes:
            data, table, dense = make(form, rows, columns)
            x, bias = torch.randn(columns, tokens).to(dtype), torch.randn(rows)
            y = torch.zeros(rows, tokens).to(dtype)
            matrix = _matrix(data, table, bias, dtype, BLOCK[form])
            one, several = ("matvec", matrix, x, y, 1), ("matmat", matrix, x, y, tokens, 0, 2)
            calls.append(one if tokens == 1 else several)
            outputs.append(y)
            expected.append(dense.double() @ x.double() + bias[:, None])
    for found, wanted, call in zip(run(program, calls, outputs), expected, calls, strict=True):
        assert _close(found, wanted), call[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_int4_by_blocks(program, dtype):
    """Blocks of several sizes, more of them than scales are widened at a time, scales below half
    precision's normal numbers and below zero; a column at a time, to the bit."""
    calls, outputs, expected, exact = [], [], [], []
    for rows, block, count in [(9, 32, 70), (5, 64, 3), (11, 96, 2)]:
        columns = block * count
        data, table, dense = make("blocks", rows, columns, 0, block, dtype)
        table[::2], dense[::2] = -table[::2], -dense[::2]
        matrix = _matrix(data, table, torch.zeros(rows), torch.float32, block)
        for x in (torch.randn(columns, 1), *torch.eye(columns)[::31].unsqueeze(2)):
            y = torch.zeros(rows, 1)
            calls.append(("matvec", matrix, x, y, 1))
            outputs.append(y)
            expected.append(dense.double() @ x.double())
            exact.append(int((x != 0).sum()) == 1)
    for found, wanted, one in zip(run(program, calls, outputs), expected, exact, strict=True):
        assert torch.equal(found.double(), wanted) if one else _close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_small_ops(program, dtype):
    half = int(dtype == torch.float16)
    x, gate = torch.randn(3, 37, 21).to(dtype), 4 * torch.randn(3, 37, 21).to(dtype)
    x[0, 0, 0], x[0, 0, 1] = 6e-6, -3e-5  # subnormal in half precision
    weight, bias = torch.randn(37), torch.randn(37)
    wide = x.double()
    square = (wide**2).mean(1, keepdim=True)
    norm = F.layer_norm(wide.mT, [37], weight.double(), bias.double(), 1e-3).mT
    y = [torch.zeros_like(x) for _ in range(6)]
    left, right = torch.randn(2, 5, 33).to(dtype), torch.randn(2, 33, 41).to(dtype)
    sums = [torch.zeros(2, 5, 41).to(dtype) for _ in range(2)]
    rows, even, table = x.mT.contiguous(), x[:, :36].contiguous(), torch.randn(36, 21).to(dtype)
    y += [torch.zeros_like(even), torch.zeros_like(even)]
    low = torch.randn(18, 21).to(dtype)
    calls = [
        ("softmax", x, y[0], 3 * 37, 21, 1, half),
        ("gated", gate, x, y[1], x.numel(), half, 1),
        ("rms_norm", x, y[2], weight, 3, 37, 21, 0.0, 1e-3, half, AS_OPS, 1),
        ("layer_norm", x, y[3], weight, bias, 3, 37, 21, 1e-3, half),
        ("rms_norm", rows, y[4], weight, 3 * 21, 37, 1, 1e-3, 0.0, half, SPELLED_OUT, 2),
        ("layer_norm", rows, y[5], weight, bias, 3 * 21, 37, 1, 1e-3, half),
        ("rotary", even, table, table, y[6], even.numel(), 36 * 21, 18 * 21, 1, half, 1),
        ("rotary", even, low, low, y[7], even.numel(), 18 * 21, 18 * 21, 2, half, 1),
        ("batch_matmul", left, right, sums[0], 2, 5, 41, 33, 0, half),
        ("batch_matmul", left, right.mT.contiguous(), sums[1], 2, 5, 41, 33, 1, half),
    ]
    rms = wide / (square + 1e-3).sqrt() * weight[:, None]
    mean = _rounded(_rounded(wide**2, dtype).mean(1, keepdim=True), dtype)
    root = _rounded(_rounded(mean + 1e-3, dtype).rsqrt(), dtype)
    spelled_out = _rounded(wide * root, dtype) * weight[:, None]
    product = left.double() @ right.double()
    turned = torch.cat([-wide[:, 18:36], wide[:, :18]], 1)
    both = torch.cat([low, low])
    turned, halved = (
        _rounded(wide[:, :36] * t, dtype) + _rounded(turned * t, dtype) for t in (table, both)
    )
    expected = [wide.softmax(-1), F.silu(gate.double()) * wide, rms, norm]
    expected += [
        spelled_out.mT.reshape(x.shape),
        norm.mT.reshape(x.shape),
        turned,
        halved,
        product,
        product,
    ]
    found = run(program, calls, [*y, *sums])
    for result, wanted, call in zip(found, expected, calls, strict=True):
        assert _close(result, wanted), call[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_functions_of_each_value_and_softmax_of_columns(program, dtype):
    half, x = int(dtype == torch.float16), (4 * torch.randn(3, 5, 21)).to(dtype)
    x[0, 0, 0] = 1e-5
    wide, y = x.double(), [torch.zeros_like(x) for _ in range(10)]
    calls = [("activation", x, y[how], x.numel(), how, half, 2) for how in Activation]
    calls[Activation.EXP] = ("activation", -x.abs(), *calls[Activation.EXP][2:])
    calls.append(("softmax", x, y[9], 3, 5, 21, half))
    tanh = F.gelu(wide, approximate="tanh")
    expected = [wide.sigmoid(), F.silu(wide), tanh, wide * (1.702 * wide).sigmoid(), F.gelu(wide)]
    expected += [wide.tanh(), (-wide.abs()).exp(), wide.cos(), wide.sin(), wide.softmax(1)]
    for found, wanted, call in zip(run(program, calls, y), expected, calls, strict=True):
        assert _close(found, wanted), call


COMPARED = {asked.EQUAL: "eq", asked.UNEQUAL: "ne", asked.LESS: "lt", asked.LESS_EQUAL: "le"}
COMBINED = {asked.ADD: "add", asked.SUB: "sub", asked.MUL: "mul", asked.LEAST: "minimum"}
WHOLE = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def test_whole_numbers_and_choices(program):
    """To the bit, broadcast, and with operands whose strides are odd; what does not fit wraps."""
    calls, outputs, expected = [], [], []

    def add(entry: int, how: int, to: Tensor, *operands: Tensor) -> None:
        types = [native.TYPES[operands[0].dtype], native.TYPES[to.dtype]]
        axes = [x.expand(to.shape).stride() for x in (to, *operands)]
        steps = [n * x.itemsize for x, a in zip((to, *operands), axes, strict=True) for n in a]
        walk = (to.dim(), to.itemsize, how, *types, *to.shape, *steps)
        wholes = [x if x._base is None else x._base for x in (to, *operands)]
        calls.append(("table", entry, (*wholes, walk)))
        outputs.append(to)

    for dtype in [*WHOLE, torch.float16, torch.float32]:
        x = torch.randint(0, 100, (3, 70)).to(dtype)
        y = torch.randint(0, 100, (70, 3)).to(dtype)
        x[1] = y.T[1]
        for how, name in COMPARED.items():
            add(0, how, torch.zeros(3, 70, dtype=torch.bool), x, y.T)
            expected.append(getattr(x, name)(y.T))
        if dtype in WHOLE:
            for how, name in COMBINED.items():
                add(0, how, torch.zeros(3, 70, dtype=dtype), x, y.T)
                expected.append(getattr(torch, name)(x, y.T))
            for made in (*WHOLE, torch.bool, torch.float16, torch.float32):
                add(0, asked.CONVERT, torch.zeros(3, 70, dtype=made), x, x)
                expected.append(x.to(made))
        chosen = torch.rand(70) < 0.5
        add(1, 0, torch.zeros(3, 70, dtype=dtype), chosen, x, y.T)
        expected.append(torch.where(chosen, x, y.T))
    for found, wanted, call in zip(run(program, calls, outputs), expected, calls, strict=True):
        assert torch.equal(found, wanted), call


@pytest.mark.parametrize("begin, end", [((1, -3, 0), (2, 9, 5)), ((-2, 2, 1), (0, -1, 4))])
def test_slices_at_positions_of_run_time(program, begin, end):
    x = torch.randn(2, 9, 5)
    first, last = (torch.tensor(places, dtype=torch.int32) for places in (begin, end))
    part = x[begin[0], begin[1] : end[1], begin[2] : end[2] : 2]
    read, written, update = torch.zeros(part.shape), x.clone(), torch.randn(part.shape)

    def numbers(reads: int) -> tuple:
        sizes, steps = (1, *part.shape), (0, *(4 * n for n in update.stride()))
        rows = zip(x.shape, x.stride(), (1, 1, 2), (4, 0, 0), sizes, steps, strict=True)
        return (3, 4, reads, *[n for a, s, *rest in rows for n in (a, 4 * s, *rest)])

    calls = [
        ("table", 2, (x, read, first, last, numbers(1))),
        ("table", 2, (written, update, first, last, numbers(0))),
    ]
    found = run(program, calls, [read, written])
    assert torch.equal(found[0], part)
    right = x.clone()
    right[begin[0], begin[1] : end[1], begin[2] : end[2] : 2] = update
    assert torch.equal(found[1], right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("C, H, W, U", [(70, 2, 33, 17), (7, 1, 300, 70), (200, 3, 20, 64)])
def test_einsums_of_many_columns(program, dtype, C, H, W, U):
    """Of x as it lies, and turned."""
    x, turned = torch.randn(C, H, W).to(dtype), torch.randn(W, H, C).to(dtype)
    y = torch.randn(W, H, U).to(dtype)
    outs = [torch.zeros(C, H, U).to(dtype) for _ in range(2)]
    calls = [
        ("table", 4, (one, y, out, H, C, W, U, *steps, H * U, U, int(dtype == torch.float16), 0))
        for one, out, steps in [(x, outs[0], (H * W, W, 1)), (turned, outs[1], (1, C, H * C))]
    ]
    found = run(program, calls, outs)
    for one, made in zip((x, turned.permute(2, 1, 0)), found, strict=True):
        expected = torch.einsum("chw,whu->chu", one.double(), y.double())
        assert torch.allclose(made.double(), expected, rtol=2**-10, atol=2**-9)


def test_rows_that_indices_choose(program):
    x, indices = torch.randn(3, 7, 5).half(), torch.tensor([6, 0, -1, 3])
    y = torch.zeros(3, 4, 5).half()
    (found,) = run(program, [("gather", x, indices, y, 3, 7, 10, 4, 8, 1)], [y])
    assert torch.equal(found, x[:, indices])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("rows, depth, rounding, scale, slots", [
    (3, 33, AS_OPS, 1.0, (70, 13)), (3, 64, SPELLED_OUT, 0.125, (70, 13)),
    (20, 33, SPELLED_OUT, 0.5, (70, 13)), (13, 64, AS_ONE, 0.125, (70, 13)),
    (13, 64, AS_OPS, 1.0, (70, 13)), (1, 64, AS_OPS, 1.0, (701, 0)),
    (6, 80, AS_ONE, 0.125, (950, 131)), (4, 64, SPELLED_OUT, 0.125, (161, 600)),
])  # fmt: skip
def test_attention(program, dtype, rows, depth, rounding, scale, slots):
    """An odd depth: rows of keys in half precision lie at odd places. Few rows read many slots in
    several places at once."""
    q = torch.randn(2, rows, depth).to(dtype)
    keys = [torch.randn(2, n, depth).to(dtype) for n in slots]
    values = [torch.randn(2, n, depth).to(dtype) for n in slots]
    keys[0][:, 30:60], values[0][:, 30:60] = 0, 0
    mask = torch.randn(rows, sum(slots)).to(dtype)
    mask[:, 30:60] = -40000
    out = torch.zeros_like(q)
    flags = int(dtype == torch.float16) | rounding << 32
    (bits,) = struct.unpack("<q", struct.pack("<fi", scale, 0))
    shape = (2, rows, depth, *slots, rows, flags, bits)
    call = ("attention", shape, q, tuple(keys), tuple(values), mask, out, 1)
    scores = scale * (q.double() @ torch.cat(keys, 1).double().mT) + mask.double()
    expected = scores.softmax(-1) @ torch.cat(values, 1).double()
    exactness = 2**-6 if dtype == torch.float16 else 2**-14  # scores of some 20 in half precision
    (found,) = run(program, [call], [out])
    assert torch.allclose(found.double(), expected, rtol=exactness, atol=exactness)


@pytest.mark.long
@pytest.mark.parametrize("command", [[HERE, "-march=x86-64"], [ARM], ["clang"]], ids=str)
def test_no_value_is_converted_alone(command, tmp_path):
    """Compilers make a call, or one instruction a value, of a half that stands alone."""
    compiler = shutil.which(command[0] or "cc")
    disassembler = "aarch64-linux-gnu-objdump" if command[0] == ARM else "objdump"
    if None in (compiler, shutil.which(disassembler)):
        pytest.skip("no such compiler, or no objdump")
    program = build([compiler, *command[1:]], tmp_path)
    text = subprocess.run([disassembler, "-d", program], capture_output=True, text=True).stdout
    assert "matmat" in text
    assert not re.findall(r"__\w*(?:hf2|h2f|f2h|sfhf)\w*|fcvt\s+[sh]\d+, [sh]\d+", text)


@pytest.mark.long
@pytest.mark.parametrize(
    "name, torch_has, by_torch",
    [
        ("AVX2", "avx2", False),
        ("AVX2", "avx512", False),
        ("plain", "default", False),
        ("plain", "avx2", True),
    ],
)
def test_status_says_which_instructions(name, torch_has, by_torch):
    """What `ane-book doctor` shows; torch multiplies where its vectors are wider."""
    level, command = BUILDS[name]
    if HERE is None or "x86" not in _machine(HERE) or not {level, "AVX2"} <= {*_levels(), ""}:
        pytest.skip("no C compiler, or for another processor")
    code = "from mlprogram.kernels import native; print(*native.status())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"CC": " ".join(command), "ATEN_CPU_CAPABILITY": torch_has},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert found.startswith(f"True {name}, made by {' '.join(command)}")
    assert ("torch multiplies several tokens" in found) == by_torch


#: What an inner loop must do in how many instructions: weights in half precision, single, int8,
#: palettes; a tile of a product, of many tokens and of few. A compiler that leaves sums on the
#: stack takes more.
LOOPS = {
    ("fcvtl", 16, "fmla", 16): 60,
    ("prfm", 4, "fmla", 16): 48,
    ("scvtf", 16, "fmla", 16): 84,
    ("tbl", 16, "fmla", 16): 100,
    ("ld1r", 1, "fmla", 24): 44,
    ("ldr", 10, "fmla", 24): 48,
}


@pytest.mark.parametrize("name", ["NEON", "NEON, clang"])
def test_inner_loops_on_arm_are_short(name, tmp_path):
    """Instructions of the loops that take the time: nobody here can time them on an Arm."""
    command, objdump = BUILDS[name][1], shutil.which("aarch64-linux-gnu-objdump")
    if None in (objdump, shutil.which(command[0]), shutil.which(ARM)):
        pytest.skip("no compiler for Arm (gcc-aarch64-linux-gnu)")
    listing = [objdump, "-d", "--no-show-raw-insn", build(command, tmp_path)]
    loops = list(_loops(subprocess.run(listing, capture_output=True, text=True).stdout))
    for (first, least, second, sums), most in LOOPS.items():
        sizes = [
            len(loop)
            for loop in loops
            if sum(name.startswith(first) for name in loop) >= least and loop.count(second) == sums
        ]
        assert sizes and min(sizes) <= most, (first, sizes)


def _loops(text: str) -> Iterator[list[str]]:
    """The names of the instructions from a branch's target to the branch that goes back to it."""
    seen: dict[str, int] = {}
    names: list[str] = []
    for at, name, rest in re.findall(r"^ *([0-9a-f]+):\t(\S+)(.*)$", text, re.MULTILINE):
        seen[at] = len(names)
        names.append(name)
        target = re.search(r"([0-9a-f]+) <", rest)
        start = seen.get(target[1]) if target and re.match(r"b\.|cbn?z|tbn?z", name) else None
        if start is not None and len(names) - start < 200:
            yield names[start:]
