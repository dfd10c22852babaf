"""Selector processes that share load, ours or the reference's, and a client for them."""

import json
from urllib.parse import quote

from tests.builders import worker_body
from tests.builders.launched_process import (
    LaunchedProcess,
    free_port,
    own_command,
    own_environment,
    plain_environment,
)
from tests.builders.polling import eventually
from tests.process.access import OPEN

TENANT = {"tenant_id": "t", "routing_group": "t"}
"""Tenant under both field names, so that every version of the reference understands the body."""


class Replica:
    """Handle of one process without KV events; `sync_port` is the publishing port."""

    def __init__(self, *flags, python=None, access=OPEN):
        self.port, self.sync_port = free_port(), free_port()
        self._access = access
        flags = (*access.flags, *access.replica(self.endpoint, self.port), *flags)
        own = ("--port", str(self.port), "--threads", "1", "--replica-sync-port")
        flags = (*own, str(self.sync_port), *flags)
        self._environment = {
            "DYN_USE_KV_EVENTS": "false",
            "SELECT_SERVICE_NO_ASSUMED_INDEX": "true",
        }
        if python is None:
            self._command = own_command("--host", "127.0.0.1", *flags)
            self._environment = own_environment(self._environment)
        else:
            self._command = (python, "-m", "dynamo.select_service", *flags)
            self._environment |= {**plain_environment(), "DYN_ROUTER_QUEUE_THRESHOLD": "1000000"}
        self._launched = None

    @property
    def endpoint(self):
        return f"tcp://127.0.0.1:{self.sync_port}"

    @property
    def url(self):
        return self._access.url(self.port)

    @property
    def process(self):
        return self._launched.process

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        self._launched = LaunchedProcess(
            self._command, self._environment, self.port, trust=self._access.trust
        )
        self._launched.wait_until_healthy()

    def kill(self):
        self._launched.kill()

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, body=None):
        return self.call("POST", path, body)

    def call(self, method, path, body=None):
        """Send a request; return the status and the answer."""
        connection = self._access.connection(self.port)
        try:
            headers = {} if body is None else {"content-type": "application/json"}
            headers |= self._access.headers
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw.startswith((b"{", b"[")) else raw
        finally:
            connection.close()

    # --- actions of tests

    def add_workers(self, n=2):
        for worker_id in range(1, n + 1):
            body = worker_body(
                worker_id, **TENANT, data_parallel_size=2, max_num_batched_tokens=8192
            )
            assert self.post("/workers", body)[0] == 201

    def add_peers(self, *peers):
        for peer in peers:
            status, _ = self.post("/replica_sync/register_peer", {"endpoint": peer.endpoint})
            assert status in (200, 201)

    def reserve(self, name, hashes=(1, 2, 3), worker_id=1, **fields):
        body = {
            "reservation_id": name,
            "selection_id": name,  # newer versions of the reference use this name for a reservation
            "model_name": "m",
            **TENANT,
            "worker_id": worker_id,
            "dp_rank": 0,
            "sequence_hashes": list(hashes),
            "isl_tokens": 4 * len(hashes),
            "effective_prefill_tokens": 4 * len(hashes),
            **fields,
        }
        return self.post("/reservations", body)[0]

    def select_and_reserve(self, name, hashes=(1, 2, 3)):
        body = {
            "reservation_id": name,
            "selection_id": name,  # newer versions of the reference use this name for a reservation
            "model_name": "m",
            **TENANT,
            "block_hashes": list(hashes),
            "sequence_hashes": list(hashes),
            "isl_tokens": 4 * len(hashes),
        }
        return self.post("/select_and_reserve", body)[0]

    def complete(self, name):
        return self.post(f"/reservations/{quote(name)}/prefill_complete")[0]

    def free(self, name):
        return self.call("DELETE", f"/reservations/{quote(name)}")[0]

    def loads(self):
        """Return (prefill tokens, blocks, requests) of partition m:t by (worker_id, dp_rank)."""
        for partition in self.get("/loads")[1]:
            tenant = partition.get("tenant_id", partition.get("routing_group"))
            if (partition["model_name"], tenant) == ("m", "t"):
                return {
                    (row["worker_id"], row["dp_rank"]): (
                        row["potential_prefill_tokens"],
                        row["potential_decode_blocks"],
                        row["active_requests"],
                    )
                    for row in partition["loads"]
                }
        return {}

    def requests(self):
        return sum(row[2] for row in self.loads().values())

    def peer(self, other):
        """Return the entry of another replica in the replication status."""
        peers = self.get("/replica_sync/status")[1]["peers"]
        return next(peer for peer in peers if peer["endpoint"] == other.endpoint)


def mesh(*replicas, workers=2):
    """Register the same workers and all other replicas at every replica; await the connections."""
    for replica in replicas:
        replica.add_workers(workers)
        replica.add_peers(*(other for other in replicas if other is not replica))


def until_equal(*replicas, requests):
    """Wait until all replicas show the same load with this many requests."""

    def are_equal():
        loads = [replica.loads() for replica in replicas]
        right = replicas[0].requests() == requests
        return right and all(load == loads[0] for load in loads)

    eventually(are_equal)
