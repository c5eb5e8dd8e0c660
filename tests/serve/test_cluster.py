"""A model on several Ray nodes of this machine: the same tokens, sessions that do not mix, and what
a client sees where a node is lost, damaged or of another version.

The nodes are real, reachable on loopback alone; starting them and their actors is most of the time.
"""

from concurrent.futures import ThreadPoolExecutor
import gc
import os
from pathlib import Path
import shutil
import sys

from _patience import HANGING, until
from _tiny import prompt
import ane_book
from ane_book.bundle import Bundle
from ane_book.bundle.cache import bundles
from ane_book.errors import BackendUnavailable, InvalidInput
from ane_book.runtime import Session
from ane_serve.cluster import stage
import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="needs the extra [cluster]")
# Not by importorskip: of modules that it gives the types are unknown, and names are not checked.
from ane_serve.cluster import connection, pipeline, placement  # noqa: E402

# A story: before a cluster is joined, with three nodes, and last without one of them.
pytestmark = [pytest.mark.long, pytest.mark.random_order(disabled=True)]
QUICK = {"health_check_period_ms": 1000, "health_check_failure_threshold": 8}  # a node is missed


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """An empty folder that Ray would take for its own, as on a machine where it never ran."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def cluster(elsewhere, tmp_path_factory):
    """Three nodes, this one among them, with a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANE_BOOK_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("RAY_TMPDIR", str(elsewhere))
        with connection.joined("local:3", _system_config=QUICK) as cluster:
            folder = Path(cluster.head_node.temp_dir).parent
            yield cluster
        assert not folder.exists() and os.environ["RAY_TMPDIR"] == str(elsewhere)


@pytest.fixture(scope="module")
def bundle(tiny_bundle) -> Bundle:
    return tiny_bundle("llama", kv="state", shard_limit=100_000)[1]


@pytest.fixture(scope="module")
def line(cluster, bundle):
    """A pipeline of three stages."""
    with pipeline.ClusterPipeline(bundle, precision="fp32") as line:
        yield line


def logits(session: Session, ids: list[int], tokens: int) -> np.ndarray:
    """Of a prompt's last token, and of the greedy ones after it."""
    rows = [session.prefill(ids)]
    for _ in range(tokens):
        rows.append(session.decode(int(rows[-1].argmax())))
    return np.array(rows)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999999"])
def test_no_cluster(address):
    """Before any is joined."""
    with pytest.raises(BackendUnavailable, match=r"no Ray cluster at .*`ray start --head`"):
        connection.joined(address).__enter__()


def test_they_write_to_a_folder_of_their_own(cluster, elsewhere):
    """Ray's folder may be missing, or another user's."""
    own = Path(cluster.head_node.temp_dir)
    assert not list(elsewhere.iterdir()) and (own / "ray_current_cluster").exists()
    sockets = [cluster.head_node.plasma_store_socket_name, cluster.head_node.raylet_socket_name]
    assert max(map(len, sockets)) < 104  # bytes, what macOS takes


def test_every_node_has_a_layer_and_the_tokens_are_the_same(line, bundle):
    assert [layers for _, layers in line.layers] == [range(0, 1), range(1, 2), range(2, 3)]
    assert len({node for node, _ in line.layers}) == line.slots == 3
    far, near = line.session(), Session(bundle, precision="fp32")
    for tokens in (1, 8, 20):
        np.testing.assert_array_equal(
            logits(far, prompt(tokens), 5), logits(near, prompt(tokens), 5)
        )
        far.rewind(3), near.rewind(3)
        np.testing.assert_array_equal(far.logits([7] * 9), near.logits([7] * 9))
        far.reset(), near.reset()
    near, far = (s.generate("Hi", max_tokens=9, temperature=1.0, seed=3) for s in (near, far))
    assert far.token_ids == near.token_ids and far.text == near.text


def test_sessions_do_not_mix(line, bundle):
    texts = ["One", "Another one", "And a third", "Four", "1, 2, 3"]
    alone = Session(bundle, precision="fp32")
    expected = [alone.generate(text, max_tokens=12).token_ids for text in texts]
    sessions = [line.session() for _ in texts]
    streams = [s.stream(t, max_tokens=12) for s, t in zip(sessions, texts, strict=True)]
    open_ = list(streams)
    while open_:  # a piece of each in turn
        open_ = [stream for stream in open_ if next(stream, None) is not None]
    assert [stream.result.token_ids for stream in streams] == expected
    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(s.generate, t, max_tokens=12) for s, t in
                zip(sessions, texts, strict=True)]  # fmt: skip
        assert [job.result(60).token_ids for job in jobs] == expected


def test_a_stream_that_is_left_frees_the_session(line, bundle):
    session = line.session()
    stream = session.stream("Something else", max_tokens=12)
    next(stream)
    stream.close()
    expected = Session(bundle, precision="fp32").generate("Hello", max_tokens=5).token_ids
    assert session.generate("Hello", max_tokens=5).token_ids == expected


def test_an_actor_that_dies_is_replaced_and_nobody_notices(line, bundle):
    """Two sessions in the middle of answers; their calls are repeated, to the bit."""
    near = [Session(bundle, precision="fp32") for _ in range(2)]
    far = [line.session() for _ in range(2)]
    for i, (one, other) in enumerate(zip(near, far, strict=True)):
        np.testing.assert_array_equal(logits(other, prompt(9 + i), 3),
                                      logits(one, prompt(9 + i), 3))  # fmt: skip
        one.rewind(5), other.rewind(5)
    ray.kill(line._stages.placed[1].actor)
    for one, other in zip(near, far, strict=True):
        np.testing.assert_array_equal(logits(other, [5], 4), logits(one, [5], 4))
    assert line.slots == 3


def test_caches_end_with_their_sessions(line):
    sessions = [line.session() for _ in range(3)]
    for session in sessions:
        session.prefill([1, 2])
    kept = sessions.pop()
    del sessions, session
    gc.collect()
    kept.decode(3)
    held = ray.get([stage.actor.to_json.remote() for stage in line._stages.placed])
    assert [facts["sessions"] for facts in held] == ["1"] * 3


def test_no_address(cluster):
    for address in ("nowhere", "local:0", "ray://127.0.0.1:1", "", "a b:1"):
        with pytest.raises(InvalidInput, match='give "auto", HOST:PORT or local:N'):
            connection.joined(address).__enter__()
    with pytest.raises(InvalidInput, match="in a Ray cluster already"):
        connection.joined("auto").__enter__()


def test_no_node_is_free(line, bundle, monkeypatch):
    monkeypatch.setattr(placement, "WAIT", 1)
    monkeypatch.setattr(placement, "TRY", 0.5)
    group = ray.util.placement_group([{"CPU": 0.9}] * 3, strategy="STRICT_SPREAD")
    assert group.wait(HANGING)
    try:
        with pytest.raises(
            placement.MachineLost, match=r"3 nodes with a CPU, and none .* `ray status`"
        ):
            pipeline.ClusterPipeline(bundle)
    finally:
        ray.util.remove_placement_group(group)


def test_nodes_of_another_version(line, bundle, monkeypatch):
    monkeypatch.setattr(stage, "__version__", "0.0.7")
    says = rf"^node \w+ \(127.*runs ane-book {ane_book.__version__}, and this machine 0\.0\.7"
    with pytest.raises(InvalidInput, match=says):
        pipeline.ClusterPipeline(bundle)


def test_fewer_programs_than_machines_and_packages_that_are_sent(
    line, tiny_bundle, tmp_path, monkeypatch
):
    """A bundle of one shard, in a folder that no node has."""
    bundle = tiny_bundle("llama", kv="host")[1]
    shutil.copytree(bundle.path, tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    here = Path("/proc/self/cwd/b" if sys.platform == "linux" else "b")
    with pipeline.ClusterPipeline(here) as line:
        assert line.slots == 1
        far, near = line.session(), Session(bundle)
        np.testing.assert_array_equal(logits(far, prompt(12), 3), logits(near, prompt(12), 3))
    if sys.platform == "linux":
        (kept,) = bundles().glob("*.parts-*")
        assert [path.name for path in kept.iterdir()] == ["layers_00-03.mlpackage"]


# Last: a node goes.


def test_a_machine_lost_in_the_middle(cluster, line, bundle):
    """Its layers go to those that are left, and the answer goes on to the same end."""
    far, alone = line.session(), Session(bundle, precision="fp32")
    expected = alone.generate("Hello", max_tokens=14)
    stream = far.stream("Hello", max_tokens=14)
    next(stream)
    cluster.remove_node(list(cluster.worker_nodes)[-1], allow_graceful=False)
    list(stream)
    assert stream.result.token_ids == expected.token_ids

    def noticed() -> bool:  # what was under way may have ended before the node was gone
        again = far.generate("Hello", max_tokens=14)
        assert again.token_ids == expected.token_ids
        return line.slots == 2

    until(noticed)
    line.close()
    with pytest.raises(placement.MachineLost, match="has been closed"):
        far.decode(1)
