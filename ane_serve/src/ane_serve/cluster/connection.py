"""Join a Ray cluster, or start one of several nodes on this machine to try things on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
import logging
import os
from pathlib import Path
import re
import shutil
import socket
import sys
import tempfile
from typing import Any

from ane_book.errors import BackendUnavailable, InvalidInput
from mlprogram.extras import missing

try:
    import ray
except ImportError:
    why = missing("to use several machines", "ane-serve[cluster]", "ray")
    raise BackendUnavailable(why) from None


#: The address of local nodes; Ray replaces 127.0.0.1 by the machine's address in its network.
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
NODE = {
    "num_cpus": 1,
    "node_ip_address": LOOPBACK,
    "object_store_memory": 80 << 20,  # bytes; Ray takes no less, and ours are a few kilobytes
    "plasma_directory": tempfile.gettempdir(),  # /dev/shm is small in many a container
    "include_dashboard": False,
    "include_log_monitor": False,  # nobody reads what it forwards
    "no_monitor": True,  # the autoscaler
}
TRIES = 3  # to start a node


@contextmanager
def joined(address: str = "auto", **options) -> Iterator[Any]:
    """Connect to a Ray cluster as a driver; leaving it ends every actor that was made meanwhile.

    address: "auto" for the cluster that this machine is a node of, "HOST:PORT", or "local:N" for N
    nodes that are started on this machine alone and end with it. A process is a driver of one
    cluster at a time. options: for the first of those nodes.

    Raises InvalidInput for an invalid address, BackendUnavailable where there is no cluster.
    """
    match = re.fullmatch(r"local:([1-9]\d?)|auto|(?!local:)[\w.-]+:\d+", address)
    if match is None:
        raise InvalidInput(f'{address!r} is no cluster: give "auto", HOST:PORT or local:N')
    with ExitStack() as stack:
        options_of_node: dict[str, str] = {}
        cluster = None
        if match[1]:
            cluster = stack.enter_context(local_cluster(int(match[1]), **options))
            address, options_of_node = cluster.address, {"_node_ip_address": LOOPBACK}
        _init(address, **options_of_node)
        try:
            yield cluster
        finally:
            ray.shutdown()


def machines() -> dict[str, dict]:
    """Ray's record of every live node with a CPU, by its id."""
    nodes = (node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU"))
    return {node["NodeID"]: node for node in nodes}


def _init(address: str, **own: Any) -> None:
    if ray.is_initialized():
        raise InvalidInput("this process is in a Ray cluster already: leave that one first")
    _quiet()
    try:
        if address != "auto":  # Ray itself would try for ten minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **own)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BackendUnavailable(
            f"no Ray cluster at {address!r}: `ray start --head` starts one, `ray start "
            f"--address=HOST:6379` joins it; {reason}"
        ) from None


def _quiet() -> None:
    """Set Ray's logging to errors alone, and its environment variables where they are not set."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing calls out
    os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: all others on a machine go first
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else each actor warns of it


@contextmanager
def local_cluster(nodes: int, **options) -> Iterator[Any]:
    """Start Ray nodes on this machine, reachable from it alone; a `ray.cluster_utils.Cluster`.

    It is there for trying, teaching and tests: the nodes share the machine's cores. All that Ray
    writes goes to a folder of its own, deleted at the end. options: further ones of the first node.
    """
    _quiet()
    from ray.cluster_utils import Cluster

    base = Path("/tmp")  # holds sockets, whose paths may have 104 bytes at most
    folder = tempfile.mkdtemp(prefix="ray-", dir=base if base.is_dir() else None)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(_ray_folder(folder))
        cluster = Cluster()
        stack.callback(cluster.shutdown)
        add_node(cluster, **options)
        for _ in range(nodes - 1):
            add_node(cluster)
        yield cluster


@contextmanager
def _ray_folder(folder: str) -> Iterator[None]:
    """Set Ray's folder for a while, in place of /tmp/ray, which may be another user's.

    A node's `temp_dir` is not enough: `Cluster` also writes its address to Ray's folder, and fails
    where there is none.
    """
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["RAY_TMPDIR"]
        else:
            os.environ["RAY_TMPDIR"] = before


def add_node(cluster: Any, **options) -> Any:
    """Start one more node; tries again where a busy machine takes longer than Ray's 30 s."""
    for left in reversed(range(TRIES)):
        try:
            return cluster.add_node(**NODE, **options)
        except Exception as error:  # so Ray raises it
            if not left or "timed out" not in str(error):
                raise BackendUnavailable(f"Ray cannot start a node here: {error}") from None
