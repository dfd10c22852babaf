"""Cost of a session on the fast path: bookings and releases, from bytes to bytes.

    python scripts/bench/session_bookings.py [--rounds 200] [--blocks 16] [--ranks 8]

Microseconds of one thread for a booking with its release, through `ServiceHandler` as a connection
calls it: without a session; with a session that continues (soft and hard); and with new sessions.
The median of the rounds and, in parentheses, the fastest.  The forms are measured in turns.
"""

import argparse
import json
import time
from random import Random
from statistics import median
from typing import Any

import msgspec

from indexer.index.prefix_index import PrefixIndex
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.core.sessions.session_settings import SessionSettings
from select_service.fastpath.service_handler import ServiceHandler
from select_service.metrics.service_metrics import ServiceMetrics
from select_service.schemas.workers import WorkerRegistration

BLOCK_SIZE = 16
HEADERS = b"HTTP/1.1\r\nhost: selector:8092\r\naccept: */*\r\nuser-agent: python-httpx/0.28.1\r\n"
BOOKINGS = 256
"""Bookings of a round."""


def handler_of(ranks: int, is_hard: bool) -> ServiceHandler:
    """Return the fast path of a service with ranks that publish events."""
    settings = SessionSettings(600.0, is_hard=is_hard, epoch_s=time.time() - time.monotonic())
    selector = build_selector(
        SelectorConfig(sessions=settings), lambda: PrefixIndex(1 << 18), rng=Random(1)
    )
    for worker_id in range(ranks):
        given = {
            "worker_id": worker_id,
            "endpoint": "http://w",
            "block_size": BLOCK_SIZE,
            "kv_events_endpoint": "tcp://w:5557",
        }
        selector.register_worker(msgspec.convert(given, WorkerRegistration))
    return ServiceHandler(selector, ServiceMetrics("0"))


def book(body: dict[str, Any]) -> bytes:
    """Return the bytes of a booking."""
    text = json.dumps(body).encode()
    head = b"POST /select_and_reserve " + HEADERS + b"content-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(text) + text


def requests_of(form: str, blocks: int, first: int) -> list[tuple[bytes, bytes]]:
    """Return pairs of requests, a booking and its release."""
    pairs = []
    for number in range(first, first + BOOKINGS):
        hashes = [number * 1000 + k + 1 for k in range(blocks)]
        body: dict[str, Any] = {"reservation_id": f"r{number}", "block_hashes": hashes}
        body |= {"sequence_hashes": hashes, "isl_tokens": BLOCK_SIZE * blocks}
        if form == "continued":
            body["session_id"] = f"conversation-{number % 64}"
        elif form == "new":
            body["session_id"] = f"conversation-{number}"
        free = b"DELETE /reservations/r%d " % number + HEADERS + b"\r\n"
        pairs.append((book(body), free))
    return pairs


def us_of(handler: ServiceHandler, pairs: list[tuple[bytes, bytes]]) -> float:
    """Return the microseconds of a booking and its release."""
    begin = time.thread_time_ns()
    answered = 0
    for booking, free in pairs:
        answered += handler.answer_request(booking, 0) is not None
        answered += handler.answer_request(free, 0) is not None
    took_us = (time.thread_time_ns() - begin) / len(pairs) / 1e3
    assert answered >= 2 * len(pairs) - 64, f"{answered} of {2 * len(pairs)} answered here"
    return took_us


def measure(rounds: int, blocks: int, ranks: int) -> dict[str, list[float]]:
    """Return the microseconds of all rounds by form."""
    handlers = {False: handler_of(ranks, False), True: handler_of(ranks, True)}
    forms = {
        "without a session": ("plain", False),
        "continued, soft": ("continued", False),
        "continued, hard": ("continued", True),
        "new sessions": ("new", False),
    }
    found: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds + 3):
        for name, (form, is_hard) in forms.items():
            first = number * BOOKINGS if form == "new" else 0
            took_us = us_of(handlers[is_hard], requests_of(form, blocks, first))
            if number >= 3:  # the first rounds compile, and render texts
                found[name].append(took_us)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    found = measure(options.rounds, options.blocks, options.ranks)
    base = median(found["without a session"]), min(found["without a session"])
    for name, took in found.items():
        middle, least = median(took), min(took)
        more = f"{middle - base[0]:+.2f} ({least - base[1]:+.2f})"
        print(f"{name:20} {middle:6.2f} ({least:.2f}) us   {more}")


if __name__ == "__main__":
    main()
