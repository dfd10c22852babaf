"""Recorded cache groups through a real service: sockets, a lost batch and its replay, HTTP."""

import msgspec
import pytest

from tests.builders.service_process import ServiceProcess
from tests.indexer.events.test_recorded_groups import LAYOUTS, rows_of
from tests.process.fake_engine import FakeEngine

pytestmark = pytest.mark.process

LOST_BATCH = 7


@pytest.fixture(scope="module")
def service():
    with ServiceProcess({}) as process:
        yield process


def register(service, layout, engine, about):
    facts = dict(about["facts"])
    body = {
        "worker_id": 1 + LAYOUTS.index(layout),
        "model_name": layout,
        "endpoint": "http://127.0.0.1:1",
        "block_size": facts.pop("block_size"),
        "is_eagle": about["ahead"] > 0,
        "kv_events_endpoint": engine.endpoint,
        "replay_endpoint": engine.replay_endpoint,
        "kv_cache": facts,
    }
    assert service.post("/workers", body).status == 201
    engine.await_subscriber()


def publish(engine, batch, *, lost):
    payload = msgspec.msgpack.encode(batch)
    seq = engine.next_seq
    engine.next_seq += 1
    engine.ring.append((seq, payload))
    if not lost:
        engine.send([b"kv", seq.to_bytes(8, "big"), payload])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reusable_tokens_are_the_engines_own(service, layout):
    rows = rows_of(layout)
    wrong, is_lost = [], False
    with FakeEngine() as engine:
        register(service, layout, engine, next(rows))
        for row in rows:
            if "batch" in row:
                is_lost = engine.next_seq == LOST_BATCH
                publish(engine, row["batch"], lost=is_lost)
            elif engine.next_seq and not is_lost:  # the next batch shows what is missing
                service.wait_until_read(engine.port, engine.next_seq - 1)
                query = {"model_name": layout, "token_ids": row["tokens"]}
                query |= {"lora_name": row.get("lora"), "cache_salt": row.get("salt")}
                (found,) = service.post("/overlap_scores", query).body["workers"]
                size = len(row["tokens"]) - 1
                held = found["device_blocks"]
                block_size = service.get("/workers").body[-1]["block_size"]
                tokens = found.get("reusable_tokens", min(held, size // block_size) * block_size)
                if (tokens, found.get("certainty", "exact")) != (row["reused"], "exact"):
                    wrong.append((tokens, found.get("certainty"), row["reused"]))
        service.call("DELETE", f"/workers/{1 + LAYOUTS.index(layout)}", None, {})
    assert wrong == []
