"""Servers that misbehave, to be asked by `ane_serve.bench`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
import re
import socket
from threading import Thread


@contextmanager
def answering(
    answer: Callable[[socket.socket], None], seen: list[bytes] | None = None
) -> Iterator[str]:
    """A server that reads a request and then does as it likes, one connection after another."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # whoever asked has left
                    request = _request(connection)
                    if seen is not None:
                        seen.append(request)
                    answer(connection)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _request(connection: socket.socket) -> bytes:
    """The head of a request, and its body as far as it has one."""
    read = b""
    while b"\r\n\r\n" not in read and (more := connection.recv(1 << 16)):
        read += more
        if not read.startswith((b"GET ", b"POST ")):  # not HTTP, so nobody knows its end
            return read
    head, _, body = read.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while length and len(body) < int(length[1]) and (more := connection.recv(1 << 16)):
        body += more
    return head + b"\r\n\r\n" + body
