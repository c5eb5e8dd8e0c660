"""llama.cpp in a process of its own: `python _llama_peer.py GGUF`, what to do as JSON on stdin.

{"logits": a folder, "context": 640, "kv": "f16", "flash": true, "streams": 1, "jobs": [...]}, of
which each is {"tokens": what is read, "save": the sequence's file or null, "new": how many tokens
are to follow} or {"load": such a file, "tokens": what is read after it, "new": ...}. Prints as JSON
a list of {"tokens": what follows, greedily, "logits": the file with those of each}, {"error": ...}.
"""

import ctypes
import json
from pathlib import Path
import sys

import llama_cpp as library
import numpy as np

TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}


class Peer:
    """A context of one model, and its first sequence."""

    def __init__(self, gguf: str, context: int, kv: str, flash: bool, streams: int):
        self.said: list[str] = []
        log = library.llama_log_callback(lambda _, text, __: self.said.append(text.decode()))
        self._kept = log  # as long as the library calls it
        library.llama_log_set(log, None)
        self.model = library.llama_model_load_from_file(
            gguf.encode(), library.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit("".join(self.said[-5:]))
        options = library.llama_context_default_params()
        options.n_ctx, options.n_threads, options.n_threads_batch = context * streams, 1, 1
        options.n_seq_max, options.kv_unified = streams, False
        options.type_k = options.type_v = TYPES[kv]
        options.flash_attn_type = int(flash)
        options.swa_full, options.n_ubatch = False, 64  # so that 500 tokens go round in its cells
        self.context = library.llama_init_from_model(self.model, options)
        self.batch = options.n_batch
        self.rows = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.model))
        self.limit = context

    def run(self, job: dict, folder: Path) -> dict:
        self.said.clear()
        library.llama_memory_clear(library.llama_get_memory(self.context), True)
        if "load" in job and not self._load(job["load"]):
            return {"error": "".join(self.said)}
        logits = [self._append(job["tokens"])]
        if job.get("save"):
            self._save(job["save"], job["tokens"])
        while len(logits) < job["new"]:
            logits.append(self._append([int(logits[-1].argmax())]))
        file = folder / f"{len([*folder.iterdir()])}.npy"
        np.save(file, logits)
        return {"tokens": [int(each.argmax()) for each in logits], "logits": str(file)}

    def _append(self, ids: list[int]) -> np.ndarray:
        for start in range(0, len(ids), self.batch):
            part = ids[start : start + self.batch]
            tokens = (library.llama_token * len(part))(*part)  # which the batch points at
            batch = library.llama_batch_get_one(tokens, len(part))
            if failed := library.llama_decode(self.context, batch):
                raise SystemExit(f"llama_decode: {failed}; {''.join(self.said[-5:])}")
        return np.ctypeslib.as_array(
            library.llama_get_logits_ith(self.context, -1), (self.rows,)
        ).copy()

    def _save(self, path: str, ids: list[int]) -> None:
        tokens = (library.llama_token * len(ids))(*ids)
        if not library.llama_state_seq_save_file(self.context, path.encode(), 0, tokens, len(ids)):
            raise SystemExit("".join(self.said[-5:]))

    def _load(self, path: str) -> int:
        tokens, count = (library.llama_token * self.limit)(), ctypes.c_size_t()
        return library.llama_state_seq_load_file(
            self.context, path.encode(), 0, tokens, self.limit, ctypes.byref(count)
        )


if __name__ == "__main__":
    how = json.load(sys.stdin)
    peer = Peer(sys.argv[1], how["context"], how["kv"], how["flash"], how["streams"])
    json.dump([peer.run(job, Path(how["logits"])) for job in how["jobs"]], sys.stdout)
