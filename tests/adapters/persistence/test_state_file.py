"""Tests of the state file alone: damage is detected, and older versions are read."""

import asyncio
import json
from random import Random

import pytest

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence.state_file import StateFile
from select_service.schemas.persisted_state import PersistedState, PersistedWorker
from select_service.schemas.workers import WorkerRegistration
from tests.builders import worker_body

STATE = PersistedState(
    workers=[
        PersistedWorker(given=WorkerRegistration(**worker_body(n)), source=None, said=None)
        for n in range(1, 6)
    ],
    deleted=[],
    thresholds=[],
    shed="best_effort",
)


def write(path, state=STATE):
    file = StateFile(path, lambda: state, lambda: 1, iter)
    asyncio.run(file.stop())
    return file


def read(path):
    """Return the restored state; None means nothing was restored."""
    found = []

    def restore(state):
        found.append(state)
        return iter(())

    async def restored():
        file = StateFile(path, lambda: STATE, lambda: 0, restore)
        await file.restore_state((), HttpClient(Resolver()))

    asyncio.run(restored())
    return found[0] if found else None


def test_a_written_state_is_restored(tmp_path):
    write(tmp_path / "state")
    assert read(tmp_path / "state") == STATE
    assert json.loads((tmp_path / "state").read_bytes())["format"] == "select-service state"


def test_a_flipped_bit_is_found_at_any_position(tmp_path):
    path = tmp_path / "state"
    write(path)
    text, random = path.read_bytes(), Random(27)
    for _ in range(500):
        content = bytearray(text)
        content[random.randrange(len(text))] ^= 1 << random.randrange(8)
        path.write_bytes(content)
        assert read(path) in (None, STATE)


def test_a_file_of_before_there_were_checksums_is_read(tmp_path):
    path = tmp_path / "state"
    write(path)
    document = json.loads(path.read_bytes())
    del document["checksum"]
    path.write_text(json.dumps(document))
    assert read(path) == STATE


@pytest.mark.parametrize("content", [b"shopping list", b"{", b'{"format":"x","workers":[]}'])
async def test_a_foreign_file_is_neither_moved_nor_overwritten(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    file = StateFile(path, lambda: STATE, lambda: 1, iter)
    await file.restore_state((), HttpClient(Resolver()))
    await file.stop()
    assert file.failures == 1
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(path.name, content)]


def test_only_its_user_may_read_it(tmp_path):
    write(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
