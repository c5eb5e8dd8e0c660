"""llama.cpp's file of one sequence: a prompt's cache that llama.cpp goes on from, and the way back.

`llama_state_seq_save_file` and `llama_state_seq_load_file` write and read it, and so do the slots
of llama-server (`--slot-save-path`). Little-endian:

    u32 magic, u32 version, u32 count, count x i32 token
    a part; of a model with windows two: of the layers without one, of those with one
        u32 streams, one of them with cells; for each:
        u32 cells; if there are any:
        cells x (i32 position, u32 1, i32 sequence)
        u32 whether values are transposed, u32 layers
        layers x (i32 type, u64 bytes of a row, cells x row of K * D)           keys
        layers x (i32 type, u64 bytes of a row, cells x row of K * D)           values, or
        layers x (i32 type, u32 bytes of a number, u32 K * D, K * D x cells)    values, transposed

It says neither the weights nor the heads nor the windows: who reads it has to know the model.

References: llama.cpp at 0c1e570, which is in llama-cpp-python 0.3.36: `state_seq_save_file` in
src/llama-context.cpp, `state_write` in src/llama-kv-cache.cpp and src/llama-kv-cache-iswa.cpp,
`server_tokens::serialize` in tools/server/server-common.cpp.
Letters: n tokens, K key/value heads, D head size.
"""

from collections.abc import Sequence
import os
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from ane_book.bundle.manifest import Manifest
from ane_book.errors import InvalidInput
from ane_book.layout import Rows
from ane_book.runtime.prompt_cache import KeptLayer, LayerCache, PromptCache, kept_layers
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from mlprogram.files import private_file, telling
import numpy as np

MAGIC, VERSION = 0x67677371, 3
RELEASE = "llama-cpp-python 0.3.36"
MOST_STREAMS = 256  # LLAMA_MAX_SEQ
PACKED = [-1, 1]  # how llama-server's tokens begin: no token, then the version of their form

KVType = Literal["f32", "f16", "q8_0"]
TYPES: dict[int, KVType] = {0: "f32", 1: "f16", 8: "q8_0"}
FLOATS: dict[str, np.dtype] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2")}


class Form(NamedTuple):
    """How llama.cpp keeps a model's cache.

    gguf: its name of the architecture. moved: keys are rotated in pairs of neighbours that are
    halves in `transformers`, since its converter moves the rows of q and k. windows: it knows the
    layers' windows; without, all layers attend to all tokens.
    """

    gguf: str
    moved: bool = False
    windows: bool = False


#: By model_type. `llama_model_rope_type` in llama.cpp's src/llama-model.cpp has the architectures
#: of neighbours (NORM) and of halves (NEOX); GLM 4's are neighbours in `transformers`, too.
FORMS = {
    "exaone4": Form("exaone4", windows=True),
    "gemma3_text": Form("gemma3", windows=True),
    "glm4": Form("glm4"),
    "granite": Form("granite", moved=True),
    "hunyuan_v1_dense": Form("hunyuan-dense"),
    "llama": Form("llama", moved=True),
    "ministral3": Form("mistral3", moved=True),
    "mistral": Form("llama", moved=True),
    "olmo2": Form("olmo2"),
    "olmo3": Form("olmo2", windows=True),
    "phi3": Form("phi3"),
    "qwen2": Form("qwen2"),
    "qwen3": Form("qwen3"),
    "qwen3_moe": Form("qwen3moe"),
    "smollm3": Form("smollm3", moved=True),
}


def write_sequence(
    cache: PromptCache,
    path: str | Path,
    manifest: Manifest,
    *,
    kv_type: KVType = "f16",
    v_transposed: bool = False,
    streams: int = 1,
) -> None:
    """Write a session's cache for llama.cpp, with mode 600, whole or not at all.

    manifest: the session's, `session.bundle.manifest`. The rest is how llama.cpp's context is made,
    which refuses a file of another form: kv_type, of keys and of values (`--cache-type-k`, `-v`);
    v_transposed, as they are without flash attention, which llama-cpp-python's `Llama` leaves out
    unless it is told to use it; streams, the number of sequences that do not share their cells
    (`--parallel` with `--no-kv-unified`).

    Raises InvalidInput for a model or numbers that llama.cpp does not hold in this form, and where
    the file cannot be written.
    """
    path, form = Path(path), _form(manifest)
    if kv_type not in TYPES.values():
        raise InvalidInput(f"kv_type={kv_type!r}: keys and values can be f32, f16 or q8_0")
    if v_transposed and kv_type not in FLOATS:
        raise InvalidInput(
            f"{kv_type} values cannot be transposed: llama.cpp needs flash attention"
        )
    if not 1 <= streams <= MOST_STREAMS:
        raise InvalidInput(f"streams={streams}: there are from 1 to {MOST_STREAMS}")
    n, kept = cache.position, kept_layers(manifest)
    expected = [{name: _shape(layer, name, n) for name in layer.places} for layer in kept]
    found = [{name: array.shape for name, array in own.arrays.items()} for own in cache.layers]
    if found != expected:
        raise InvalidInput(f"the cache is not one of {manifest.name}, whose manifest this is")
    if len(cache.tokens) != n or not n:
        raise InvalidInput(f"a cache of {n} tokens that names {len(cache.tokens)}")
    layers = {layer.number: own for layer, own in zip(kept, cache.layers, strict=True)}
    parts = _parts(kept, form, n)
    with private_file(path) as file:  # it says what was read
        _write(file, "<u4", MAGIC, VERSION, n)
        _write(file, "<i4", *cache.tokens)
        for part in parts:
            _write(file, "<u4", streams)
            own = {layer.number: layers[layer.number] for layer in part}
            _write_stream(file, own, n, form, kv_type, v_transposed)
            _write(file, "<u4", *[0] * (streams - 1))


def read_sequence(path: str | Path, manifest: Manifest) -> PromptCache:
    """Read what llama.cpp wrote of one sequence, for `session.continue_from`.

    manifest: the session's, `session.bundle.manifest`. The file says nothing of the weights: that
    they are the same is for the caller to know.

    Raises InvalidInput for a file that is not one, is cut short, of another version or model, or
    holds less or more than the text from its beginning on.
    """
    path, form = Path(path), _form(manifest)
    kept = kept_layers(manifest)
    with telling(path, "name another file"):
        if not path.is_file():
            raise InvalidInput(f"{path}: not a file; name one that llama.cpp wrote")
        with path.open("rb") as file:
            reader = _Reader(file, path)
            tokens = _read_tokens(reader)
            found: dict[int, LayerCache] = {}
            for part in _parts(kept, form, len(tokens)):
                found |= _read_part(reader, part, len(tokens), form)
            if reader.left:
                raise reader.error(f"{reader.left:,} bytes more than this model's layers have")
    return PromptCache(tokens, len(tokens), [found[layer.number] for layer in kept])


def _form(manifest: Manifest) -> Form:
    name = manifest.model.get("architecture")
    if name not in FORMS:
        raise InvalidInput(
            f"{manifest.name}: caches of {str(name)[:80]!r} are not written or read as llama.cpp "
            f"has them; those of {', '.join(FORMS)} are"
        )
    return FORMS[name]


def _shape(layer: KeptLayer, name: str, n: int) -> tuple[int, int, int]:
    """(K, rows, D) of a layer's keys or values after n tokens."""
    kind = layer.places[name][0].store.kind
    assert isinstance(kind, Rows), "all layers of FORMS are attention"
    order = layer.order("keys")
    D = order.size if isinstance(order, np.ndarray) and order.size else kind.size
    return kind.heads * kind.size // D, layer.rows(n), D


def _parts(layers: Sequence[KeptLayer], form: Form, n: int) -> list[list[KeptLayer]]:
    """The layers in each part of a file of n tokens; raises InvalidInput where it has no such."""
    windows = {layer.window for layer in layers if layer.window}
    if not windows:
        return [[*layers]]
    if form.windows:
        whole = [layer for layer in layers if not layer.window]
        return [whole, [layer for layer in layers if layer.window]]
    if n > min(windows):
        raise InvalidInput(
            f"{n} tokens, of which layers attend to the last {min(windows)}: those of llama.cpp's "
            f"{form.gguf} attend to all"
        )
    return [[*layers]]


# --- Rows: keys or values of one layer as llama.cpp has them, (n, K * D)


def _rows(array: np.ndarray, moved: bool) -> np.ndarray:
    """float32 (n, K * D) from (K, n, D); moved: halves -> neighbours."""
    K, n, D = array.shape
    if moved:
        array = array.reshape(K, n, 2, D // 2).swapaxes(2, 3).reshape(K, n, D)
    return np.asarray(array, np.float32).swapaxes(0, 1).reshape(n, K * D)


def _heads(rows: np.ndarray, shape: tuple[int, ...], moved: bool) -> np.ndarray:
    """float32 (K, n, D) from (n, K * D); moved: neighbours -> halves."""
    K, n, D = shape
    array = np.asarray(rows, np.float32).reshape(n, K, D).swapaxes(0, 1)
    if moved:
        array = array.reshape(K, n, D // 2, 2).swapaxes(2, 3).reshape(K, n, D)
    return np.ascontiguousarray(array)


def _hadamard(rows: np.ndarray, name: str, D: int) -> np.ndarray:
    """Rows as llama.cpp turns them before it rounds to 8 bits, and, turned again, as they were.

    `build_input_k_rot` and `_v_rot` in src/llama-kv-cache.cpp. LLAMA_ATTN_ROT_DISABLE in its
    environment, of which a file says nothing, leaves it out.
    """
    if D % 64:
        return rows
    size = D & -D if name == "keys" else 64  # the largest power of two in D
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (rows.reshape(-1, size) @ (matrix / np.float32(size**0.5))).reshape(rows.shape)


def _row_bytes(width: int, kind: KVType) -> int:
    return width * FLOATS[kind].itemsize if kind in FLOATS else width // 32 * 34


# --- Writing


def _write(file: BinaryIO, dtype: str, *numbers: int) -> None:
    file.write(np.array(numbers, dtype).tobytes())


def _write_stream(
    file: BinaryIO,
    layers: dict[int, LayerCache],
    n: int,
    form: Form,
    kind: KVType,
    transposed: bool,
) -> None:
    """Cells, keys and values of a part's layers."""
    cells = min([n, *(layer.window for layer in layers.values() if layer.window)])
    _write(file, "<u4", cells)
    positions = np.arange(n - cells, n)
    file.write(np.stack([positions, 0 * positions + 1, 0 * positions], 1).astype("<i4").tobytes())
    _write(file, "<u4", transposed, len(layers))
    for name in ("keys", "values"):
        for number, layer in layers.items():
            array = layer.arrays[name]
            rows = _rows(array, form.moved and name == "keys")
            data = _encoded(rows, name, array.shape[2], kind, f"layer {number}: {name}")
            _write(file, "<i4", next(code for code, known in TYPES.items() if known == kind))
            if transposed and name == "values":
                _write(file, "<u4", FLOATS[kind].itemsize, rows.shape[1])
                data = data.T
            else:
                _write(file, "<u8", _row_bytes(rows.shape[1], kind))
            file.write(data.tobytes())


def _encoded(rows: np.ndarray, name: str, D: int, kind: KVType, place: str) -> np.ndarray:
    """Rows as a type of llama.cpp has them; raises InvalidInput for numbers that it has not."""
    if kind == "q8_0" and D % 32:
        raise InvalidInput(f"{place} of heads of {D}: llama.cpp has {kind} of multiples of 32")
    with np.errstate(over="ignore"):
        data = rows.astype(FLOATS.get(kind, np.dtype("<f2")))  # whose scales q8_0 has
    if not np.isfinite(data).all():
        raise InvalidInput(f"{place} are not finite in {kind}")
    if kind in FLOATS:
        return data
    return quantize(_hadamard(rows, name, D), GGMLQuantizationType.Q8_0)


# --- Reading


class _Reader:
    """Takes a file's numbers one after another, and no more than there are."""

    def __init__(self, file: BinaryIO, path: Path):
        self._file, self._path = file, path
        self.left = os.fstat(file.fileno()).st_size

    def error(self, what: str) -> InvalidInput:
        return InvalidInput(f"{self._path}: {what}; have llama.cpp save it again")

    def take(self, dtype: str | np.dtype, count: int, what: str) -> np.ndarray:
        """The next numbers; raises InvalidInput before memory is taken where they are not there."""
        size = count * np.dtype(dtype).itemsize
        data = self._file.read(size) if size <= self.left else b""
        if len(data) != size:
            raise self.error(f"cut short: {what}: {size:,} bytes, and {self.left:,} are there")
        self.left -= size
        return np.frombuffer(data, dtype)

    def number(self, dtype: str, what: str) -> int:
        return int(self.take(dtype, 1, what)[0])

    def expect(self, dtype: str, wanted: int, what: str) -> None:
        found = self.number(dtype, what)
        if found != wanted:
            raise self.error(f"{what}: {found:,}, and this model has {wanted:,}")


def _read_tokens(reader: _Reader) -> list[int]:
    """The header and the tokens, those of llama-server's form, too."""
    magic, version = (int(number) for number in reader.take("<u4", 2, "the header"))
    if magic != MAGIC:
        raise reader.error(f"begins with {magic:#010x}, and llama.cpp's sequences with {MAGIC:#x}")
    if version != VERSION:
        raise reader.error(
            f"version {version} of llama.cpp's sequences, and {VERSION}, that of {RELEASE}, is read"
        )
    count = reader.number("<u4", "the number of tokens")
    tokens = reader.take("<i4", count, "tokens").tolist()
    if tokens[:1] == PACKED[:1]:
        if tokens[:2] != PACKED or len(tokens) < 4 or tokens[2] != len(tokens) - 4 or tokens[-1]:
            raise reader.error("tokens of another form, or with images or sound")
        tokens = tokens[3:-1]
    if not tokens:
        raise reader.error("no tokens")
    if min(tokens) < 0:
        raise reader.error("a token below 0")
    return tokens


def _read_part(reader: _Reader, part: list[KeptLayer], n: int, form: Form) -> dict[int, LayerCache]:
    """The layers of one part, by their numbers."""
    streams = reader.number("<u4", "streams")
    if not 1 <= streams <= MOST_STREAMS:
        raise reader.error(f"{streams:,} streams, and llama.cpp has up to {MOST_STREAMS}")
    found: dict[int, LayerCache] = {}
    filled = 0
    for _ in range(streams):
        if cells := reader.number("<u4", "cells"):
            filled += 1
            if filled == 1:
                found = _read_stream(reader, part, n, cells, form)
    if filled != 1:
        raise reader.error(f"cells in {filled} streams, and a sequence has them in one")
    return found


def _read_stream(
    reader: _Reader, part: list[KeptLayer], n: int, cells: int, form: Form
) -> dict[int, LayerCache]:
    wanted = min([n, *(layer.window for layer in part if layer.window)])
    if cells != wanted:
        raise reader.error(f"{cells:,} cells, and this model has {wanted:,} after {n:,} tokens")
    meta = reader.take("<i4", 3 * cells, "cells").reshape(cells, 3)
    order = np.argsort(meta[:, 0], kind="stable")
    if (meta[order, 0] != np.arange(n - cells, n)).any() or (meta[:, 1] != 1).any():
        raise reader.error(f"its cells are not those of positions {n - cells} to {n - 1}")
    transposed = reader.number("<u4", "whether values are transposed")
    if transposed > 1:
        raise reader.error(f"values transposed: {transposed}, which is neither 0 nor 1")
    reader.expect("<u4", len(part), "layers of a part")
    arrays: dict[int, dict[str, np.ndarray]] = {layer.number: {} for layer in part}
    for name in ("keys", "values"):
        for layer in part:
            shape, place = _shape(layer, name, n), f"layer {layer.number}: {name}"
            flat = transposed == 1 and name == "values"
            rows = _read_rows(reader, shape, name, flat, place)[order]
            if not np.isfinite(rows).all():
                raise reader.error(f"{place} are not finite")
            arrays[layer.number][name] = _heads(rows, shape, form.moved and name == "keys")
    return {layer.number: LayerCache(arrays[layer.number], layer.window) for layer in part}


def _read_rows(
    reader: _Reader, shape: tuple[int, ...], name: str, flat: bool, place: str
) -> np.ndarray:
    """(cells, K * D) of a layer whose arrays have the shape (K, cells, D); flat: transposed."""
    K, cells, D = shape
    code = reader.number("<i4", f"{place}: type")
    kind = TYPES.get(code)
    if kind is None or (kind == "q8_0" and (flat or D % 32)):
        known = {each.value: each.name.lower() for each in GGMLQuantizationType}
        raise reader.error(f"{place} are of type {known.get(code, code)}, which is not read here")
    if flat:
        reader.expect("<u4", FLOATS[kind].itemsize, f"{place}: bytes of a number")
        reader.expect("<u4", K * D, f"{place}: numbers of a token")
        return reader.take(FLOATS[kind], K * D * cells, place).reshape(K * D, cells).T
    size = _row_bytes(K * D, kind)
    reader.expect("<u8", size, f"{place}: bytes of a row")
    if kind in FLOATS:
        return reader.take(FLOATS[kind], K * D * cells, place).reshape(cells, K * D)
    data = reader.take("u1", size * cells, place).reshape(cells, size)
    return _hadamard(dequantize(data, GGMLQuantizationType.Q8_0), name, D)
