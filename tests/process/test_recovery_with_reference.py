"""Tests that ours and the reference recover from each other, with equal overlap.

Runs only where SELECT_SERVICE_REFERENCE_PYTHON names a Python that has ai-dynamo-runtime.
"""

import contextlib

import pytest

from tests.builders.polling import eventually
from tests.builders.reference_python import NEEDS_REFERENCE, PYTHON
from tests.process.access import OPEN, Keyed
from tests.process.fake_engine import Chain, FakeEngine
from tests.process.replica_processes import TENANT, Replica

pytestmark = NEEDS_REFERENCE
FIELDS = ("worker_id", "dp_rank", "device_blocks", "host_pinned_blocks", "disk_blocks")
CHAINS = [Chain(salt) for salt in range(1, 5)]
BLOCKS = 12


class Selector(Replica):
    """Selector with KV events; `python` selects ours or the reference."""

    def __init__(self, *flags, python=None, access=OPEN):
        super().__init__(*flags, python=python, access=access)
        self._environment["DYN_USE_KV_EVENTS"] = "true"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def register(self, worker_id, engine):
        body = {
            "worker_id": worker_id,
            "model_name": "m",
            **TENANT,
            "endpoint": "http://w",
            "block_size": 4,
            "max_num_batched_tokens": 8192,
            "kv_events_endpoint": engine.endpoint,
        }
        assert self.post("/workers", body)[0] == 201

    def rows(self, chain, n_blocks=BLOCKS):
        tokens = [token for block in range(n_blocks) for token in chain.tokens(block)]
        body = {"model_name": "m", **TENANT, "token_ids": tokens}
        status, answer = self.post("/overlap_scores", body)
        if status != 200:
            return []
        return sorted([row[field] for field in FIELDS] for row in answer["workers"])

    def all_rows(self):
        return [self.rows(chain) for chain in CHAINS]


class Indexer(Selector):
    """The standalone indexer of the reference."""

    def __init__(self):
        super().__init__(python=PYTHON)
        options = ("--block-size", "4", "--port", str(self.port))
        self._command = [PYTHON, "-m", "dynamo.indexer", *options]

    def register(self, worker_id, engine):
        body = {
            "instance_id": worker_id,
            "model_name": "m",
            **TENANT,
            "endpoint": engine.endpoint,
            "block_size": 4,
        }
        assert self.post("/register", body)[0] == 201

    def blocks(self):
        _, partitions = self.get("/dump")
        dump = partitions.get("m:t", {"events": []})
        stored = (event["event"]["data"]["stored"] for event in dump["events"])
        return sum(len(each["blocks"]) for each in stored)


def on(medium, event):
    return [*event[:6], medium]


def publish(engines):
    """Publish shared and own chains, lower tiers, a removal and a block announced twice."""
    for worker_id, engine in engines.items():
        engine.publish(CHAINS[0].stored(0, 4 + worker_id))
        engine.publish(CHAINS[worker_id].stored(0, 6))
        engine.publish(on("CPU", CHAINS[worker_id].stored(6, 2)))
        engine.publish(on("DISK", CHAINS[worker_id].stored(8, 1)))
        engine.publish(CHAINS[3].stored(0, 3))
        engine.publish(["BlockRemoved", [CHAINS[3].engine_hash(2)], "GPU"])
        engine.publish(CHAINS[3].stored(2, worker_id))
    engines[1].publish(CHAINS[1].stored(0, 2))


EXPECTED = [
    [[1, 0, 5, 5, 5], [2, 0, 6, 6, 6]],
    [[1, 0, 6, 8, 9], [2, 0, 0, 0, 0]],
    [[1, 0, 0, 0, 0], [2, 0, 6, 8, 9]],
    [[1, 0, 3, 3, 3], [2, 0, 4, 4, 4]],
]


@contextlib.contextmanager
def recovered(first, second_of):
    """Yield a service that has recovered from the dump of `first` and follows the same engines.

    first: service that learns the blocks from the engines' events
    second_of: function from the URL of `first` to the second service
    """
    with FakeEngine(replay=False) as one, FakeEngine(replay=False) as two, first:
        engines = {1: one, 2: two}
        for worker_id, engine in engines.items():
            first.register(worker_id, engine)
            engine.await_subscriber()
        publish(engines)
        eventually(lambda: first.all_rows() == EXPECTED)
        with second_of(first.url) as second:
            for worker_id, engine in engines.items():
                second.register(worker_id, engine)
            yield second


def beginning_with(**second):
    return lambda url: Selector("--indexer-peers", url, **second)


@pytest.mark.parametrize(
    ("source", "sink"),
    [(None, PYTHON), (PYTHON, None)],
    ids=["theirs from ours", "ours from theirs"],
)
def test_the_overlap_is_the_same_on_both_sides(source, sink):
    with recovered(Selector(python=source), beginning_with(python=sink)) as second:
        eventually(lambda: second.all_rows() == EXPECTED)


def test_ours_with_keys_begins_with_the_dump_of_theirs(tmp_path):
    with recovered(Selector(python=PYTHON), beginning_with(access=Keyed(tmp_path))) as second:
        eventually(lambda: second.all_rows() == EXPECTED)


def test_theirs_has_no_key_for_the_dump_of_ours_and_begins_empty(tmp_path):
    with recovered(Selector(access=Keyed(tmp_path)), beginning_with(python=PYTHON)) as second:
        # The service answers only after its recovery, and no event is published after that.
        assert second.all_rows() == [[[1, 0, 0, 0, 0], [2, 0, 0, 0, 0]]] * len(CHAINS)


def test_the_dump_of_their_standalone_indexer_gives_the_same_overlap():
    with FakeEngine(replay=False) as one, FakeEngine(replay=False) as two:
        engines = {1: one, 2: two}
        with Indexer() as first:
            for worker_id, engine in engines.items():
                first.register(worker_id, engine)
                engine.await_subscriber()
            publish(engines)
            held = sum(row[-1] for rows in EXPECTED for row in rows)
            eventually(lambda: first.blocks() == held)
            with Selector("--indexer-peers", first.url) as second:
                for worker_id, engine in engines.items():
                    second.register(worker_id, engine)
                eventually(lambda: second.all_rows() == EXPECTED)
