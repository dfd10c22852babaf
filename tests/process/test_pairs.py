"""Test of 64 clients with pairs over two keyed replicas, while legs and a replica are killed."""

import http.client
import itertools
import json
import ssl
import threading
import time
from collections import Counter
from random import Random

import pytest

from select_service.core.pairs.pair_book import ORPHAN_S
from tests.builders import worker_body
from tests.builders.polling import PATIENCE_S, eventually
from tests.process.access import Secured
from tests.process.replica_processes import TENANT, Replica

pytestmark = pytest.mark.process

CLIENTS = 64
TRAFFIC_S = 12.0
PREFILLS, DECODES = (1, 2, 3), (4, 5, 6)
UNREACHABLE = (OSError, http.client.HTTPException, ssl.SSLError)


def register(replica, worker_id):
    link = {"host": f"h{worker_id % 3}", "link_gbps": 100.0, "bytes_per_token": 131072.0}
    body = worker_body(
        worker_id,
        **TENANT,
        role="prefill" if worker_id in PREFILLS else "decode",
        kv_transfer=link,
        prefill_tokens_per_s=33_000.0,
        max_num_batched_tokens=8192,
    )
    return replica.post("/workers", body)[0]


def join(replica, other):
    for worker_id in (*PREFILLS, *DECODES):
        assert register(replica, worker_id) in (200, 201)
    # A replica reads the keys of replicas that start later a second after their start.
    body = {"endpoint": other.endpoint}
    eventually(lambda: replica.post("/replica_sync/register_peer", body)[0] in (200, 201))


class PairClients:
    """Threads that run pairs from booking to end, at any available replica."""

    def __init__(self, replicas):
        self.replicas = replicas
        self.is_over = threading.Event()
        self.counts = Counter()
        self.faults = []
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self.run, args=(number,)) for number in range(CLIENTS)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive()

    def note(self, what):
        with self._lock:
            self.counts[what] += 1

    def run(self, number):
        rng = Random(number)
        for turn in itertools.count():
            if self.is_over.is_set():
                return
            try:
                self.run_pair(f"c{number}-{turn}", rng)
            except Exception as error:
                self.faults.append(repr(error))
                return
            time.sleep(rng.uniform(0.0, 0.3))

    def call(self, rng, method, path, body=None):
        """Return an answer, beginning with a random replica; wait until one is up."""
        until = time.monotonic() + 30.0
        first = rng.randrange(2)
        for attempt in itertools.count(first):
            try:
                return self.replicas[attempt % 2].call(method, path, body)
            except UNREACHABLE:
                assert time.monotonic() < until, f"no replica answered {method} {path}"
                time.sleep(0.05)
        return None

    def run_pair(self, name, rng):
        tokens = [rng.randrange(100) for _ in range(rng.choice([40, 400]))]
        body = {"model_name": "m", **TENANT, "reservation_id": name, "token_ids": tokens}
        body |= {"local": rng.choice(["auto", "never"]), "repeat": True}
        status, answer = self.call(rng, "POST", "/select_pair_and_reserve", body)
        if status == 503:  # all workers of a role are away
            self.note("refused")
            return
        assert status == 200, (status, answer)
        legs = answer["legs"]
        assert (answer["path"] == "local") == (legs[0]["worker_id"] == legs[1]["worker_id"])
        self.note(answer["path"])
        status, said = self.call(rng, "POST", f"/reservations/{name}/renew")
        if status == 200 and said.get("lost_leg"):
            status, moved = self.call(rng, "POST", f"/reservations/{name}/move", {"leg": "prefill"})
            # A restarted replica may not have read the other replica's pairs yet.
            assert status in (200, 404, 409, 503), (status, moved)
            self.note(f"moved {status}")
        for verb in ("prefill_complete", "first_token"):
            time.sleep(rng.uniform(0.0, 0.05))
            status, _ = self.call(rng, "POST", f"/reservations/{name}/{verb}")
            assert status in (200, 404)
        self.end(name, rng)

    def end(self, name, rng):
        """End the reservation at one replica or, where an event was late, at the other."""
        for replica in rng.sample(self.replicas, 2):
            try:
                status, _ = replica.call("DELETE", f"/reservations/{name}")
            except UNREACHABLE:
                continue
            assert status in (200, 404)
            if status == 200:
                self.note("ended")
                return
        self.note("gone")  # ended with its worker, or with the replica that was killed


def names_of(replica):
    """Return (reservation id, leg) of all rows, with separate legs."""
    found, after = [], ""
    while after is not None:
        query = f"limit=1000&separate_legs=true{f'&after={after}' if after else ''}"
        page = replica.get(f"/reservations?{query}")[1]
        found += [(row["reservation_id"], row.get("leg")) for row in page["reservations"]]
        after = page["next"]
    return found


def test_no_pair_is_lost_or_doubled_while_legs_and_a_replica_are_killed(tmp_path):
    access = Secured(tmp_path)
    with Replica(access=access) as a, Replica(access=access) as b:
        replicas = [a, b]
        for replica, other in (a, b), (b, a):
            join(replica, other)
        eventually(lambda: all(r.peer(o)["connected"] for r, o in ((a, b), (b, a))))
        rng, begin = Random(1), time.monotonic()
        with PairClients(replicas) as clients:
            while time.monotonic() - begin < TRAFFIC_S:
                time.sleep(0.5)
                names = names_of(a)
                assert len(names) == len(set(names))
                worker_id = rng.choice((*PREFILLS, *DECODES))
                for replica in replicas:
                    replica.call("DELETE", f"/workers/{worker_id}")
                time.sleep(0.3)
                for replica in replicas:
                    assert register(replica, worker_id) in (200, 201)
                if clients.counts["killed"] == 0 and time.monotonic() - begin > TRAFFIC_S / 3:
                    b.kill()
                    time.sleep(0.5)
                    b.start()
                    join(b, a)
                    clients.note("killed")
        print(dict(clients.counts), json.dumps(clients.faults)[:500])  # shown on failure
        assert clients.faults == []
        assert clients.counts["killed"] == 1
        assert clients.counts["remote"] > CLIENTS
        assert clients.counts["ended"] > CLIENTS

        def are_empty():
            return all(
                names_of(r) == [] and set(r.loads().values()) == {(0, 0, 0)} for r in replicas
            )

        # A leg whose other events died with the killed replica ends later.
        eventually(are_empty, ORPHAN_S + PATIENCE_S)
        for replica in replicas:
            text = replica.get("/metrics")[1].decode()
            assert 'select_service_pair_legs{leg="prefill"} 0.0' in text
            assert 'select_service_pair_legs{leg="decode"} 0.0' in text
