"""Claims prefill-gpu and decode-gpu: the GPU reads a prompt 2.9 to 15.9 times as fast as the engine
and decodes 2.0 to 3.9 times as fast (cadamcat), or the engine reads 2 to 3 times as fast
(torch-ane) and decodes as fast (anemll-forge).

The matrices of a layer, 1x1 convolutions of 1,024 and 2,816 channels, over 1 to 512 tokens: one is
a step of decode without its cache, eight a check of guessed tokens.

Question: Which reads a prompt and writes an answer faster, the engine or the GPU?
"""

from _settle import Case, conv, found, graph, main, mb, milliseconds

TOKENS = (1, 8, 64, 512)


def write(tokens: int):
    def build(x):
        for _ in range(4):
            gated = mb.silu(x=conv(x, 2816))
            x = mb.add(x=x, y=conv(mb.mul(x=gated, y=conv(x, 2816)), 1024))
        return mb.identity(x=x, name="y")

    return lambda path: graph(path, [(1, 1024, 1, tokens)], build)


def decide(results):
    said = []
    for name in results:
        engine, gpu = (milliseconds(results, name, u) for u in ("CPU_AND_NE", "CPU_AND_GPU"))
        said.append(f"{found(results, name)}, the GPU in {gpu / engine:.2f} of the engine's time")
    return "; ".join(said)


CASES = [Case(f"{tokens} tokens", write(tokens), large=tokens > 8) for tokens in TOKENS]

if __name__ == "__main__":
    main("prefill", "prefill-gpu, decode-gpu", CASES, decide)
