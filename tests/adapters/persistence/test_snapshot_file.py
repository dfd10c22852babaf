"""Tests of the snapshot file alone: possible paths, and the treatment of unreadable files."""

import asyncio
import os
import threading
from random import Random

import numpy as np
import pytest

from indexer.dumps import compact_writer
from indexer.dumps.compact_reader import LoadLimits
from indexer.dumps.recovered_blocks import DumpedPartition
from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.dns_resolver import Resolver
from indexer.tiers import Tier
from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence import snapshot_file
from select_service.adapters.persistence.index_persistence import (
    IndexPersistence,
    IndexPersistenceSettings,
)
from select_service.adapters.persistence.persisted_file import REFUSED_FILES_MAX
from select_service.adapters.persistence.recovery_progress import RecoveryProgress
from select_service.adapters.persistence.snapshot_file import SnapshotFile, read_snapshot
from select_service.core.registry.fleet.recovered_blocks import RecoveryStatus, SnapshotStatus
from select_service.core.views.dump_parts import DumpPart
from tests.builders.polling import PATIENCE_S

LIMITS = LoadLimits(1000)


def read(path):
    return read_snapshot(path, LIMITS, RecoveryProgress(str(path)))


def damaged_file(end):
    """Return a file that begins as a snapshot and continues as garbage."""
    head = {"format": compact_writer.FORMAT, "version": compact_writer.VERSION}
    return compact_writer._encode_frame(head) + end.encode()


def test_refused_files_are_numbered_and_never_overwrite_each_other(tmp_path):
    path = tmp_path / "index"
    for end in ("a", "b", "c"):
        path.write_bytes(damaged_file(end))
        assert read(path) == []
    kept = {each.name: each.read_bytes()[-1:] for each in tmp_path.iterdir()}
    assert kept == {"index.refused": b"a", "index.refused.2": b"b", "index.refused.3": b"c"}


@pytest.mark.parametrize("content", [b"shopping list", b"\xc6\x00\x00\x00\x20", b"{}"])
def test_a_foreign_file_is_neither_moved_nor_overwritten(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    assert read(path) == []
    status = SnapshotStatus()
    asyncio.run(SnapshotFile(path, status).write_snapshot([a_part(10, 1)]))
    assert status.failures == 1
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(path.name, content)]


def test_an_empty_file_is_logged_and_overwritten(tmp_path, caplog):
    path = tmp_path / "index"
    path.touch()
    assert read(path) == []
    assert [each.message for each in caplog.records] == ["snapshot file is empty"]
    asyncio.run(SnapshotFile(path, SnapshotStatus()).write_snapshot([a_part(10, 1)]))
    assert len(read(path)) == 1


def test_a_pipe_is_neither_waited_for_nor_moved(tmp_path):
    path = tmp_path / "index"
    os.mkfifo(path)
    assert read(path) == []
    assert [each.name for each in tmp_path.iterdir()] == ["index"]


def test_a_flipped_bit_is_found_at_any_position(tmp_path):
    """Check the checksum of each frame."""
    path = tmp_path / "index"
    asyncio.run(SnapshotFile(path, SnapshotStatus()).write_snapshot([a_part(200, 1)]))
    whole = path.read_bytes()
    random = Random(27)
    for _ in range(500):
        content = bytearray(whole)
        content[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        path.write_bytes(content)
        assert read(path) == []


def test_the_oldest_of_too_many_refused_files_is_deleted(tmp_path):
    path = tmp_path / "index"
    for number in range(REFUSED_FILES_MAX + 1):
        path.write_bytes(damaged_file(str(number)))
        os.utime(path, (1000 - number, 1000 - number if number != 3 else 1))
        read(path)
    contents = sorted(int(each.read_bytes()[-1:]) for each in tmp_path.iterdir())
    assert contents == [0, 1, 2, *range(4, REFUSED_FILES_MAX + 1)]


def test_a_file_of_the_older_salt_rule_is_read_with_a_log_line(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO")
    path = tmp_path / "index"
    for rule in (compact_writer.SALT_RULE, compact_writer.SALT_RULE - 1):
        monkeypatch.setattr(compact_writer, "SALT_RULE", rule)
        asyncio.run(SnapshotFile(path, SnapshotStatus()).write_snapshot([a_part(10, 1)]))
        assert len(read(path)) == 1
    told = [each.message for each in caplog.records if "salt" in each.message]
    assert told == ["snapshot of the older salt rule converted"]


def test_a_file_of_a_newer_version_is_kept_aside_and_logged(tmp_path, caplog):
    path = tmp_path / "index"
    path.write_bytes(compact_writer._encode_frame({"format": compact_writer.FORMAT, "version": 2}))
    assert read(path) == []
    fields = caplog.records[-1].fields
    assert fields["error"] == "version 2, this service reads 1"
    assert fields["kept_as"] == str(tmp_path / "index.refused")


@pytest.mark.parametrize("error", [MemoryError("no room"), ZeroDivisionError("a bug")])
def test_a_file_is_kept_aside_after_any_read_error(tmp_path, monkeypatch, caplog, error):
    def fail(self, data):
        raise error

    path = tmp_path / "index"
    path.write_bytes(damaged_file("all blocks"))
    monkeypatch.setattr(snapshot_file.CompactReader, "feed", fail)
    assert read(path) == []
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {
        "index.refused": damaged_file("all blocks")
    }
    assert caplog.records[-1].fields["error"] == f"{type(error).__name__}: {error}"


def test_a_failed_recovery_leaves_the_file_unchanged(tmp_path):
    """Check that the next snapshot does not replace blocks that were never handed out."""

    class Follower:
        async def wait_until_adopted(self):
            pass

    class Service:
        def start_held_listeners(self):
            raise ZeroDivisionError

        @property
        def inspection(self):
            return self

        def index_dumps(self):
            return [a_part(10, 1)]

    path = tmp_path / "index"
    asyncio.run(SnapshotFile(path, SnapshotStatus()).write_snapshot([a_part(20, 2)]))
    before = path.read_bytes()
    wanted = IndexPersistenceSettings((), str(path), 0.0, 1000)
    status = RecoveryStatus("running")
    keeping = IndexPersistence(wanted, Service(), status, SnapshotStatus(), HttpClient(Resolver()))

    async def until_written():
        keeping.start(Service(), Follower())
        while not path.exists() or path.read_bytes() == before:
            await asyncio.sleep(0.01)
        await keeping.stop()

    asyncio.run(asyncio.wait_for(until_written(), PATIENCE_S))
    assert path.with_name("index.refused").read_bytes() == before


def a_part(blocks, seed):
    index = PrefixIndex(2 * blocks)
    contents, names = np.random.default_rng(seed).integers(0, 2**64, (2, blocks), dtype=np.uint64)
    index.open_slot().store(Tier.GPU, None, contents, names)
    return DumpPart("m:t", 4, lambda: DumpedPartition("m:t", 4, {(1, 0): 0}, index.snapshot()))


@pytest.mark.parametrize("chunks", range(4))
def test_the_last_snapshot_waits_for_the_one_that_is_under_way(tmp_path, monkeypatch, chunks):
    monkeypatch.setattr(snapshot_file, "LAST_WRITE_S_MAX", PATIENCE_S)
    path = tmp_path / "index"
    reached, go_on = threading.Event(), threading.Event()

    def slowly(partitions, clock):
        for number, chunk in enumerate(compact_writer.compact_chunks(partitions, clock)):
            if number == chunks:
                reached.set()
                go_on.wait(PATIENCE_S)
            yield chunk

    async def cancelled_midway(file):
        monkeypatch.setattr(snapshot_file, "compact_chunks", slowly)
        task = asyncio.create_task(file.write_snapshot([a_part(40_000, 1)]))
        assert await asyncio.to_thread(reached.wait, PATIENCE_S)
        task.cancel()
        await asyncio.wait([task])
        monkeypatch.setattr(snapshot_file, "compact_chunks", compact_writer.compact_chunks)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await file.write_last([a_part(39_000, 2)])

    status = SnapshotStatus()
    asyncio.run(cancelled_midway(SnapshotFile(path, status)))
    (kept,) = read_snapshot(path, LoadLimits(100_000), RecoveryProgress(str(path)))
    assert (kept.blocks, status.failures) == (39_000, 0)
    assert [each.name for each in tmp_path.iterdir()] == ["index"]


def test_snapshots_go_on_after_one_that_failed_for_a_bug(tmp_path, monkeypatch, caplog):
    path, fails = tmp_path / "index", iter([ZeroDivisionError, ZeroDivisionError, None])

    class Dumps:
        @property
        def inspection(self):
            return self

        def index_dumps(self):
            return [a_part(10, 1)]

    class Follower:
        async def wait_until_adopted(self):
            pass

    def chunks(partitions, clock):
        for chunk in compact_writer.compact_chunks(partitions, clock):
            yield chunk
            error = next(fails, None)
            if error is not None:
                raise error

    async def until_written(file):
        monkeypatch.setattr(snapshot_file, "compact_chunks", chunks)
        writing = asyncio.create_task(file.write_every(Dumps(), Follower(), 0.0))
        while file.status.written_at is None and not writing.done():
            await asyncio.sleep(0.01)
        assert not writing.done()
        writing.cancel()
        await asyncio.wait([writing])

    status = SnapshotStatus()
    asyncio.run(until_written(SnapshotFile(path, status)))
    assert status.failures == 2
    assert len(read(path)) == 1
    (line,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert line.exc_info[0] is ZeroDivisionError
