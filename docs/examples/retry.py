"""Reserve a worker with retries that do not make an overload worse.

    budget = RetryBudget()  # shared by all requests of the process
    with httpx.Client(base_url="http://selector:8092") as http:
        selection = reserve_worker(http, "/select_and_reserve", body, RetryPolicy(20.0, budget))

A temporary refusal (all workers busy, tier shed, queue full or timed out, quota used up) is a 503
or 429 with `Retry-After`. No worker was reserved, so the client may send the same request again.
Other responses are not retried: another 4xx stays the same, and after a broken connection
`GET /reservations` shows whether a reservation exists.

Four rules:

1. Wait at least `Retry-After`.
2. Add a random part of a backoff window that doubles with every attempt ("full jitter"), so that
   clients that were refused together do not return together.
3. Limit retries by a budget over all requests of the process, so that a long overload does not
   multiply the load.
4. Keep a deadline: do not begin a wait that would end after it, and send the remaining time as
   `timeout_ms`.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 60.0
TIMEOUT_MS_MAX = 3_600_000
"""Largest `timeout_ms` that the service accepts."""
RETRIES_PER_REQUEST = 0.1
RETRIES_SAVED_MAX = 10.0
TEMPORARY_STATUSES = {httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE}


class RefusedError(Exception):
    """Final refusal: permanent, or without time or budget for another attempt.

    response: last response of the service
    """

    def __init__(self, response: httpx.Response, attempts: int) -> None:
        super().__init__(f"{response.status_code} after {attempts} attempts: {response.text[:300]}")
        self.response = response
        self.attempts = attempts


@dataclass
class RetryBudget:
    """Budget of the process: every request earns a part of a retry, up to a limit."""

    saved: float = RETRIES_SAVED_MAX

    def add_request(self) -> None:
        self.saved = min(RETRIES_SAVED_MAX, self.saved + RETRIES_PER_REQUEST)

    def take_retry(self) -> bool:
        """Take one retry; return False if the budget is used up."""
        if self.saved < 1.0:
            return False
        self.saved -= 1.0
        return True


@dataclass
class RetryPolicy:
    """Time limit of a request and the retry budget of the process."""

    deadline_s: float
    budget: RetryBudget
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
    """Random number, uniform in [0, 1)."""


def reserve_worker(
    http: httpx.Client, path: str, body: dict[str, Any], policy: RetryPolicy
) -> dict[str, Any]:
    """Return the selection. Raises RefusedError, httpx.HTTPError."""
    deadline = policy.clock() + policy.deadline_s
    policy.budget.add_request()
    attempts = 0
    while True:
        remaining_s = max(0.0, deadline - policy.clock())
        payload = body | {"timeout_ms": min(TIMEOUT_MS_MAX, int(1000 * remaining_s))}
        response = http.post(path, json=payload, timeout=remaining_s + 1.0)
        attempts += 1
        if response.is_success:
            selection: dict[str, Any] = response.json()
            return selection
        wait_s = compute_backoff(response, attempts, policy.jitter())
        if wait_s is None or policy.clock() + wait_s >= deadline or not policy.budget.take_retry():
            raise RefusedError(response, attempts)
        policy.sleep(wait_s)


def compute_backoff(response: httpx.Response, attempts: int, jitter: float) -> float | None:
    """Return the seconds to wait, or None for a refusal that is not temporary.

    jitter: uniform in [0, 1)
    """
    retry_after = response.headers.get("retry-after", "")
    if response.status_code not in TEMPORARY_STATUSES or not retry_after.isdecimal():
        return None
    window_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempts, 32))
    return float(retry_after) + jitter * window_s
