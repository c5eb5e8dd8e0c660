"""Clocks that lie, for every Python process that has this folder on PYTHONPATH: `make clock`.

Between two readings a clock runs up to a hundred times too fast or too slow, by another factor each
time, and never back. So what is asserted of times holds at any speed, or fails here. Python itself,
installed packages and the files with limits against hanging are told the truth: what waits goes on
waiting. CLOCK_SEED repeats a run.
"""

import os
import random
import sys
import sysconfig
import threading
import time

HONEST = (sysconfig.get_path("stdlib"), "<frozen")
PARTS = ("site-packages", "dist-packages", "_patience.py", "_forks.py", "mac/child.py")
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")

draw = random.Random(int(os.environ.get("CLOCK_SEED", 0)))


def lying(name: str):
    """The clock of a name, in seconds, and the same in nanoseconds."""
    true, lock = getattr(time, name), threading.Lock()
    last = told = true()

    def read(asking: str) -> float:
        nonlocal last, told
        now = true()
        if asking.startswith(HONEST) or any(part in asking for part in PARTS):
            return now
        with lock:
            told += max(0.0, now - last) * 10 ** draw.uniform(-2, 2)
            last = now
            return told

    def seconds() -> float:
        return read(sys._getframe(1).f_code.co_filename)

    def nanoseconds() -> int:
        return round(read(sys._getframe(1).f_code.co_filename) * 1e9)

    return seconds, nanoseconds


for name in CLOCKS:
    seconds, nanoseconds = lying(name)
    setattr(time, name, seconds)
    setattr(time, f"{name}_ns", nanoseconds)
