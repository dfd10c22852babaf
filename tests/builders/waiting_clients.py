"""Clients of a real service with requests that wait for a worker, and ways to observe the queue."""

import re
from typing import Any

from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.builders.running import Client, Running, request

BATCH_TOKENS = 16
PROMPT = {"model_name": "m", "token_ids": list(range(16))}
QUEUE = ("--queue-threshold", "0.5")
"""Threshold at which a rank has room while at most 8 tokens prefill: the prompt above fills it."""


def pending(service: Running) -> int:
    """Return the number of waiting requests according to GET /loads."""
    return sum(row["pending_count"] for row in service.call("GET", "/loads").body)


def count_reservations(service: Running) -> int:
    """Return the number of reservations according to GET /reservations."""
    total: int = service.call("GET", "/reservations").body["total"]
    return total


def a_full_worker(service: Running, worker_id: int = 1, **fields: Any) -> None:
    """Register a worker without room, because of the reservation `full-<worker_id>`."""
    body = worker_body(worker_id, max_num_batched_tokens=BATCH_TOKENS, **fields)
    assert service.call("POST", "/workers", body).status == 201
    booked = {**PROMPT, "worker_id": worker_id, "reservation_id": f"full-{worker_id}"}
    assert service.call("POST", "/reservations", booked).status == 201


def waiting(service: Running, route: str = "/select_and_reserve", **fields: Any) -> Client:
    """Return a client with a request that waits in the queue."""
    before = pending(service)
    client = service.client()
    client.send(request("POST", route, {**PROMPT, **fields}))
    eventually(lambda: pending(service) == before + 1)
    return client


def metric(service: Running, name: str, **labels: str) -> float | None:
    """Return the value of the only series with at least these labels, or None without a series."""
    text = service.call("GET", "/metrics").body.decode()
    values = []
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found is not None:
            given = dict(re.findall(r'(\w+)="([^"]*)"', found[1] or ""))
            if labels.items() <= given.items():
                values.append(float(found[2]))
    assert len(values) <= 1, f"{name}{labels} is not one series"
    return values[0] if values else None
