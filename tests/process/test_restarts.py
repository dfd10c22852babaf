"""Tests of the snapshot file of real processes."""

import shutil
import time

import pytest

from indexer.dumps.compact_writer import compact_chunks
from tests.builders.polling import eventually
from tests.builders.recovery_scenes import (
    KV,
    ScriptedPeer,
    ended,
    fill,
    head,
    overlap,
    register,
    sends,
)
from tests.builders.running import Running, complaint, run_to_end
from tests.process.fake_engine import Chain, FakeEngine

pytestmark = pytest.mark.process


def test_a_restarted_service_has_its_index_again(tmp_path):
    path = tmp_path / "index.snapshot"
    chain = Chain()
    with FakeEngine(replay=False) as engine:
        with Running("--snapshot-path", str(path), **KV) as service:
            assert ended(service)["state"] == "empty"
            register(service, 1, engine)
            fill(service, engine, chain, 5)
            assert service.stop() == 0
        for _ in range(2):  # the second time no worker has registered in between
            with Running("--snapshot-path", str(path), **KV) as service:
                assert ended(service)["blocks"] == 5
        with Running("--snapshot-path", str(path), **KV) as service:
            assert ended(service)["peer"] == str(path)
            register(service, 1, engine)
            assert overlap(service, chain, 5) == {1: 5}

            def goes_on():
                engine.publish(chain.stored(5))
                return overlap(service, chain, 6) == {1: 6}

            eventually(goes_on)


BEGIN = next(iter(compact_chunks([])))


@pytest.mark.parametrize("content", [BEGIN, BEGIN + b"nonsense", BEGIN + BEGIN[:5] + b"x" * 80])
def test_a_file_that_cannot_be_used_is_moved_aside(tmp_path, content):
    path = tmp_path / "index.snapshot"
    path.write_bytes(content)
    with Running("--snapshot-path", str(path)) as service:
        line = service.line("snapshot file unusable, starting without it")
        assert line["level"].lower() == "warning"
        assert ended(service)["state"] == "empty"
        assert service.stop() == 0
    assert (tmp_path / "index.snapshot.refused").read_bytes() == content
    assert path.exists()


def test_an_empty_peer_does_not_take_the_place_of_the_file(tmp_path):
    path = tmp_path / "index.snapshot"
    chain, flags = Chain(5), ("--snapshot-path", str(path))
    with FakeEngine() as engine:
        with Running(*flags, **KV) as service:
            register(service, 1, engine)
            fill(service, engine, chain, 4)
            assert service.stop() == 0
        nothing = b'{"m:default":{"block_size":4,"events":[]}}'
        with (
            ScriptedPeer(sends(head() + nothing)) as peer,
            Running(*flags, "--indexer-peers", peer.url, **KV) as service,
        ):
            assert (ended(service)["state"], ended(service)["blocks"]) == ("found", 4)


def test_a_peer_that_has_just_begun_does_not_take_the_place_of_a_full_file(tmp_path):
    path = tmp_path / "index.snapshot"
    chain, flags = Chain(6), ("--snapshot-path", str(path))
    with FakeEngine(replay=False) as engine, Running(**KV) as peer:
        with Running(*flags, **KV) as service:
            register(service, 1, engine)
            fill(service, engine, chain, 9)
            assert service.stop() == 0
        register(peer, 1, engine)

        def has_received_events():  # later than the file, and nearly empty
            engine.publish(Chain(7).stored(0))
            return overlap(peer, Chain(7), 1) == {1: 1}

        eventually(has_received_events)
        url = f"http://127.0.0.1:{peer.port}"
        with Running(*flags, "--indexer-peers", url, **KV) as service:
            found = ended(service)
            assert (found["peer"], found["blocks"]) == (str(path), 9)


def test_a_path_where_nothing_can_be_kept_ends_the_start(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, told in {
        "no/such": f"directory `{tmp_path}/no` does not exist",
        "file/x": f"directory `{tmp_path}/file` does not exist",
        "": f"cannot use `{tmp_path}`: not a regular file but a directory, give a regular file",
        "dangling": f"cannot use `{tmp_path}/dangling`: No such file or directory",
    }.items():
        status, _, errors = run_to_end("--port", "0", "--snapshot-path", str(tmp_path / name))
        assert (status, complaint(errors)) == (2, f"--snapshot-path: {told}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file"]


def test_a_failed_snapshot_is_reported(tmp_path):
    directory = tmp_path / "gone"
    directory.mkdir()
    with Running("--snapshot-path", str(directory / "index")) as service:
        ended(service)
        shutil.rmtree(directory)
        assert service.stop() == 0
        assert service.lines("snapshot write failed")


def test_a_kill_at_any_moment_leaves_a_readable_file(tmp_path):
    path = tmp_path / "index.snapshot"
    chain = Chain()
    with FakeEngine(replay=False) as engine:
        with Running("--snapshot-path", str(path), **KV) as service:
            ended(service)
            register(service, 1, engine)
            engine.await_subscriber()
            engine.publish(chain.stored(0, 20_000))
            eventually(lambda: overlap(service, chain, 20_000) == {1: 20_000})
            service.stop()
        for attempt in range(5):
            flags = ("--snapshot-path", str(path), "--snapshot-interval-secs", "1")
            with Running(*flags, **KV) as service:
                assert ended(service)["blocks"] == 20_000
                register(service, 1, engine)
                until = time.monotonic() + 1.0 + attempt * 0.004
                while time.monotonic() < until:
                    pass
                service.process.kill()
                service.process.wait()
        assert not list(tmp_path.glob("*.refused"))
