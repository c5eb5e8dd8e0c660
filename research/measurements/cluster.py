"""Tokens per second of two and three Ray nodes against one session: ratios of one run.

SmolLM2-135M-Instruct, one thread a node, as many answers at once as there are nodes, interleaved,
median of 5. All nodes are on this machine and share its cores: with fewer cores than nodes that is
what the pipeline costs, not what machines bring. Bytes are counted twice: the hidden states, as
`ane-book plan --machines` has them, and all that went over loopback meanwhile, which is Ray's
envelopes and heartbeats too, and whoever else uses it (Linux).
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
import sys
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record
from ane_book.runtime import Session
from ane_serve.cluster.connection import joined
from ane_serve.cluster.layout import crossing
from ane_serve.cluster.pipeline import ClusterPipeline
import torch

LIMIT, NODES, PROMPT, NEW_TOKENS, ROUNDS = "75MB", (2, 3), 40, 16, 5


def loopback() -> int:
    """Bytes that this machine has sent to itself; 0 where nobody counts."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.split()[0] == "lo:")


def answer(session: Session) -> None:
    token = session.position
    for _ in range(NEW_TOKENS):
        token = int(session.decode(token).argmax())
    session.rewind(PROMPT)


def run(sessions: list[Session]) -> tuple[float, float]:
    """Tokens per second of all sessions at once, and bytes over loopback for a token."""
    with ThreadPoolExecutor(len(sessions)) as pool:
        before, start = loopback(), time.perf_counter()
        list(pool.map(answer, sessions))
        seconds, tokens = time.perf_counter() - start, NEW_TOKENS * len(sessions)
    return tokens / seconds, (loopback() - before) / tokens


def measure(made, nodes: int) -> dict:
    """One session alone, one on the nodes, and as many as there are nodes."""
    with joined(f"local:{nodes}"), ClusterPipeline(made) as line:
        groups = {"alone": [Session(made)], "one": [line.session()], "all": line.sessions()}
        for session in (session for group in groups.values() for session in group):
            session.prefill(list(range(PROMPT)))
        rounds = [{name: run(group) for name, group in groups.items()} for _ in range(ROUNDS)]
        layers = [[own.start, own.stop] for _, own in line.layers]
    row = 2 * sum(crossing(made.manifest, 1).values())
    found = {
        "layers": layers,
        "one_answer": round(median(r["one"][0] / r["alone"][0] for r in rounds), 3),
        "answers_at_once": round(median(r["all"][0] / r["alone"][0] for r in rounds), 3),
        "hidden_state_bytes_per_token": 2 * (nodes - 1) * row,
        "loopback_bytes_per_token": round(median(r["all"][1] for r in rounds)),
    }
    print(f"{nodes} nodes: {found}")
    return found


def main() -> None:
    torch.set_num_threads(1)
    made = bundle(shard_limit=LIMIT)
    record("cluster", {"over": "one session alone", **{str(n): measure(made, n) for n in NODES}})


if __name__ == "__main__":
    main()
