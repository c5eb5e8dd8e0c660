"""`anebook serve` in a process of its own."""

from contextlib import contextmanager
import subprocess
import sys

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PIPE = f"{sys.executable} -m mlprogram.pipe"
HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


@contextmanager
def begun(anebook, folder, *arguments, executor=PIPE, port="0"):
    """`anebook serve` in a process of its own, and its address."""
    command = [*anebook, "serve", str(folder), "--executor", executor, *arguments]
    command += ["--port", port] if port else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            assert line.startswith("serving "), line + process.stderr.read()
            places = line.split(" at ")[1].strip().removesuffix("/v1")
            yield process, places
        finally:
            process.kill()


def chat(text: str = "Hello", **fields) -> dict:
    asked = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}
    return asked | fields
