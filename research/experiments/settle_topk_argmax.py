"""Claims topk and argmax-integer: ops that choose, between convolutions that the engine wants.

topk: k of 3 and 4 fail in the compiler (ANEForge); taken, k of 40 too (M6 study). argmax with an
int32 result: CPU only, and the graph follows (M6 study); works in the graph (CoreML-LLM).

Question: Does the engine take topk, and argmax with an integer result?
"""

from _settle import Case, between, conv, found, graph, main, mb

KS = (1, 3, 4, 40)


def top(k: int):
    """The largest k of 64 channels, put back under as many as there were."""

    def build(x):
        values, _ = mb.topk(x=x, k=k, axis=1, ascending=False)
        return mb.add(x=x, y=mb.reduce_sum(x=values, axes=[1], keep_dims=True))

    return lambda path: between(path, build)


def choose(path):
    def build(x):
        for _ in range(4):
            x = mb.relu(x=conv(x, 64, (3, 3)))
        return mb.reduce_argmax(x=x, axis=1, keep_dims=True, name="token")

    graph(path, [(1, 64, 32, 32)], build)


def plain(path):
    between(path, lambda x: x)


def decide(results):
    said = "; ".join(found(results, f"topk, k = {k}") for k in KS)
    argmax, alone = results["argmax at the end"], results["without it"]
    share = argmax.figures.get("ane_cost", 0.0)
    whole = f"with argmax {share:.0%} of the time is planned on the engine, without {alone.verdict}"
    return f"{said}; {whole}"


CASES = [Case(f"topk, k = {k}", top(k)) for k in KS]
CASES += [Case("argmax at the end", choose), Case("without it", plain)]

if __name__ == "__main__":
    main("topk-argmax", "topk, argmax-integer", CASES, decide)
