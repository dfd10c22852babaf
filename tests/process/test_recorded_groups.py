"""Tests of recorded cache groups through a real service: sockets, lost batch, replay, HTTP.

scripts/test_slow tests/process/test_recorded_groups.py -s     # every recording, with restarts
"""

from collections import Counter
from contextlib import ExitStack
from functools import partial

import msgspec
import pytest

from tests.builders.polling import eventually
from tests.builders.recovery_scenes import KV, a_peer_url, ended
from tests.builders.running import Running
from tests.builders.service_process import ServiceClient, ServiceProcess
from tests.indexer.events.test_recorded_groups import LAYOUTS, rows_of
from tests.process.fake_engine import FakeEngine

pytestmark = pytest.mark.process

LOST_BATCH = 7
VERSIONS = [
    "vllm-0.23.0/full32_and_window16",
    "vllm-0.23.0/full_and_state_salted",
    "vllm-0.23.0/full_window_and_state",
    "vllm-0.23.0/states_of_two_kinds",
    "vllm-0.33.0/ahead_and_state_default_retention",
    "vllm-0.33.0/deepseek_v4_default_retention",
    "vllm-0.33.0/drop_state_and_draft",
    "vllm-0.33.0/full_and_state_context_parallel_2",
    "vllm-0.33.0/state_alone",
    "vllm-0.33.0/state_inside_blocks_crowded",
    "vllm-0.33.0/three_states_528_default_retention",
    "vllm-0.33.0/window_first_salted",
]
"""Recordings of other layouts: some of each kind of group and each version."""
RECORDINGS = [*LAYOUTS, *VERSIONS]


@pytest.fixture(scope="module")
def service():
    with ServiceProcess({}) as process:
        yield process


def register(service, layout, engine, about):
    facts = dict(about["facts"])
    body = {
        "worker_id": 1 + RECORDINGS.index(layout),
        "model_name": layout,
        "endpoint": "http://127.0.0.1:1",
        "block_size": facts.pop("block_size"),
        "is_eagle": about["ahead"] > 0,
        "kv_events_endpoint": engine.endpoint,
        "replay_endpoint": engine.replay_endpoint,
        "kv_cache": facts,
    }
    assert service.post("/workers", body).status == 201


def is_verified(service, layout):
    """Return whether the index is complete: a replay has confirmed the dump."""
    record = service.get(f"/workers/{1 + RECORDINGS.index(layout)}").body
    status = record["kv_events"]["0"]
    return status["connected"] and status["state"] in ("connected", "no_events_yet")


def answer_of(service, layout, row, block_size):
    """Return the reusable tokens of a prompt and the answer's certainty."""
    query = {"model_name": layout, "token_ids": row["tokens"]}
    query |= {"lora_name": row.get("lora"), "cache_salt": row.get("salt")}
    (found,) = service.post("/overlap_scores", query).body["workers"]
    held = min(found["device_blocks"], (len(row["tokens"]) - 1) // block_size)
    return found.get("reusable_tokens", held * block_size), found.get("certainty", "exact")


def publish(engine, batch, *, lost):
    payload = msgspec.msgpack.encode(batch)
    seq = engine.next_seq
    engine.next_seq += 1
    engine.ring.append((seq, payload))
    if not lost:
        engine.send([b"kv", seq.to_bytes(8, "big"), payload])


def play(service, layout, engine, rows, block_size):
    """Play rows of a recording with a lost batch; return answers beside the engine's."""
    answers, is_lost = [], False
    for row in rows:
        if "batch" in row:
            is_lost = engine.next_seq == LOST_BATCH
            publish(engine, row["batch"], lost=is_lost)
        elif engine.next_seq and not is_lost:  # the next batch reveals the gap
            service.wait_until_certain(engine.port, engine.next_seq - 1)
            answers.append((*answer_of(service, layout, row, block_size), row["reused"]))
    return answers


@pytest.mark.parametrize("layout", RECORDINGS)
def test_reusable_tokens_are_the_engines_own(service, layout):
    rows = rows_of(layout)
    about = next(rows)
    with FakeEngine() as engine:
        register(service, layout, engine, about)
        engine.await_subscriber()
        answers = play(service, layout, engine, rows, about["facts"]["block_size"])
        service.call("DELETE", f"/workers/{1 + RECORDINGS.index(layout)}", None, {})
    assert [each for each in answers if each != (each[2], "exact", each[2])] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", ["snapshot", "peer"])
def test_a_restart_in_the_middle_changes_no_answer(source, tmp_path):
    """Play the second half to a service that begins from a snapshot or from a peer's dump."""
    flags, counts = ("--snapshot-path", str(tmp_path / "index.snapshot")), Counter()
    with ExitStack() as stack:
        parts = {layout: list(rows_of(layout)) for layout in RECORDINGS}
        engines = {layout: stack.enter_context(FakeEngine()) for layout in RECORDINGS}
        first = stack.enter_context(Running(*flags, **KV))

        def play_half(running, which):
            client = ServiceClient(running.port)
            for layout, (about, *rows) in parts.items():
                register(client, layout, engines[layout], about)
                # A publisher gets no event for a second subscriber to the same topic.
                eventually(partial(is_verified, client, layout))
                cut = len(rows) // 2
                half, size = rows[which * cut :][: None if which else cut], about["facts"]
                for answer in play(client, layout, engines[layout], half, size["block_size"]):
                    counts[which, answer[1], (answer[0] > answer[2]) - (answer[0] < answer[2])] += 1
            client.close()

        play_half(first, 0)
        if source == "snapshot":
            assert first.stop() == 0
            second = stack.enter_context(Running(*flags, **KV))
        else:
            second = stack.enter_context(Running("--indexer-peers", a_peer_url(first), **KV))
        ended(second)
        play_half(second, 1)
    print(source, dict(counts))
    assert set(counts) == {(0, "exact", 0), (1, "exact", 0)}
