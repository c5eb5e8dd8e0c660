"""`ane-book redact` on a long file: sentences a second, peak memory, and every byte outside spans.

    python research/measurements/redact.py [--megabytes 1] [--one-line] [--model NAME]

The page of demo/ over and over, with its lines, or its letter as one line, through the command in a
process of its own. What was written is held to what --json says: the bytes between spans, and their
labels. What an empty file takes is start, and is taken off the time.

Results are kept by model and form in research/measurements/redact.json.
"""

import argparse
import json
import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import MEASUREMENTS, record

NAME = "redact"
PAGE = Path(__file__).parents[2] / "demo" / "page.txt"
SENTENCE = re.compile(rb"[.!?]\s|\n")  # where one ends


#: The command, which says last how much memory it had at most. Its parent cannot: on Linux it is
#: told no less than what it held itself when it forked.
COMMAND = """
from ane_book.__main__ import main
from mlprogram.analysis.memory import peak_resident
import sys
try:
    main()
finally:
    print(peak_resident(), file=sys.stderr)
"""


def run(file: Path, out: Path, *options: str) -> dict[str, float]:
    """One run of the command: seconds by the clock and of the processor, and the most memory."""
    command = [sys.executable, "-c", COMMAND, "redact", file, "--out", out, *options]
    started = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    *said, peak = process.stderr.read().decode().splitlines()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    assert status == 0, said
    return {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": int(peak),
        "lines_said": len(said),
    }


def check(data: bytes, written: bytes, rows: bytes) -> int:
    """Hold what was written to the spans; how many there are."""
    spans, parts, place = [json.loads(row) for row in rows.splitlines()], [], 0
    for span in spans:
        parts += [data[place : span["byte_start"]], f"<{span['label'].upper()}>".encode()]
        place = span["byte_end"]
    assert written == b"".join([*parts, data[place:]])
    return len(spans)


def measure(megabytes: int, one_line: bool, model: str, folder: Path) -> dict:
    page, size = PAGE.read_bytes(), megabytes * 1_000_000
    if one_line:
        page = page.split(b"==")[2].replace(b"\n", b" ")
    data = (page * (size // len(page) + 1))[:size].decode(errors="ignore").encode()
    file, empty, out = (folder / name for name in ("text", "empty", "out"))
    file.write_bytes(data)
    empty.touch()
    run(empty, out, "--model", model)  # which converts, if nobody did
    start, found = run(empty, out, "--model", model), run(file, out, "--model", model)
    run(file, folder / "rows", "--model", model, "--json")
    spans = check(data, out.read_bytes(), (folder / "rows").read_bytes())
    seconds = found["seconds"] - start["seconds"]
    sentences = len([part for part in SENTENCE.split(data) if part.strip()])
    return {
        "when": time.strftime("%Y-%m-%d"),
        "bytes": len(data),
        "sentences": sentences,
        "spans": spans,
        "sentences_per_second": sentences / seconds,
        "bytes_per_second": len(data) / seconds,
        "start": start,
        "run": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1)
    parser.add_argument("--one-line", action="store_true")
    parser.add_argument("--model", default="privacy-filter-small")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.megabytes, options.one_line, options.model, Path(folder))
    form = f"{options.megabytes} MB{', one line' if options.one_line else ''}"
    name = f"{Path(options.model).name}, {form}"
    print(
        f"{name}: {found['sentences_per_second']:.1f} sentences/s, {found['spans']:,} spans, "
        f"{found['run']['peak_bytes'] / 1e6:.0f} MB ({found['start']['peak_bytes'] / 1e6:.0f} MB "
        "for an empty file)"
    )
    file = MEASUREMENTS / f"{NAME}.json"
    known = json.loads(file.read_text())["runs"] if file.exists() else {}
    record(NAME, {"runs": known | {name: found}})


if __name__ == "__main__":
    main()
