"""What tracing costs: CPU of one POST /select that gets no span, and of one that gets one.

    python -m scripts.bench.tracing [--rounds 7] [--seconds 3]

Without a span: compiled code, in this process and without sockets, in turns.  With one: services of
their own on one connection, their CPU with that of the exporting thread; the collector is this
process.  Prompts of 256 tokens, 8 ranks.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from pathlib import Path
from typing import Any

from scripts.bench.keys import BATCH, Measured, connected, costs_us
from select_service.api.application import Application
from select_service.fast.protocol import Lean
from select_service.fast.service_answerer import ServiceAnswerer
from select_service.fast.traced import Traced
from select_service.http.server import server_of
from select_service.metrics.tracing import TracingCounts
from tests.builders import worker_body
from tests.fast.requests import HTTPX
from tests.fast.requests import request as compact_request
from tests.fast.two_services import DATE, Side
from tests.process.otlp_receiver import Receiver
from tests.process.running import Running, request

IDS = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
PROMPT = {"model_name": "m", "token_ids": list(range(256))}
WARM = 200
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
COMPILED = {
    "off": (False, None),
    "off, with a traceparent": (False, "00"),
    "on, no traceparent": (True, None),
    "on, not sampled": (True, "00"),
}


def compiled(runner: asyncio.Runner, is_on: bool, flags: str | None) -> Measured:
    """One side of the comparison without spans.  flags: of the traceparent, if there is one"""
    side: Any = Side(runner, False, (), 1)
    answerer = ServiceAnswerer(side.service.selector, side.service.metrics)
    only_callers = True, False, False
    front = Lean(answerer, (lambda a: Traced(a, TracingCounts(), only_callers)) if is_on else None)
    front.say(DATE)
    front.watch.on = lambda connections: None  # type: ignore[method-assign]  # no time passes for anybody
    side._config = server_of(Application(side.service), front).config
    side._config.load()
    runner.run(connected(side))
    side.say(compact_request("POST /workers", HTTPX, worker_body(1, data_parallel_size=8)))
    runner.run(side._reconnect())
    head = HTTPX if flags is None else (*HTTPX, ("traceparent", f"00-{IDS}-{flags}"))
    asked = compact_request("POST /select", head, PROMPT)
    for _ in range(WARM):
        assert side.say(asked).startswith(b"HTTP/1.1 200")
    return Measured(side, [asked] * BATCH, [])


def cpu_s(service: Running) -> float:
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def in_process_us(service: Running, headers: dict[str, str], seconds: float) -> float:
    """CPU of the process by request."""
    asked = request("POST", "/select", PROMPT, **headers)
    with service.client() as client:
        begun, before, n = time.monotonic(), cpu_s(service), 0
        while time.monotonic() - begun < seconds:
            client.send(asked)
            assert client.answer().status == 200
            n += 1
        return (cpu_s(service) - before) / n * 1e6


def show(kinds: dict[str, list[float]], beside: str) -> None:
    for kind, found in kinds.items():
        more = [a - b for a, b in zip(found, kinds[beside], strict=True)]
        print(
            f"{kind:26} {statistics.median(found):7.2f} us"
            f"  {statistics.median(more):+7.2f} ({min(more):+.2f} to {max(more):+.2f})"
        )


def without_spans(rounds: int) -> None:
    with asyncio.Runner() as runner:
        sides = {kind: compiled(runner, *how) for kind, how in COMPILED.items()}
        took = [runner.run(costs_us(sides)) for _ in range(rounds)]
    show({kind: [each[kind] for each in took] for kind in sides}, "off, with a traceparent")


def with_spans(rounds: int, seconds: float) -> None:
    sampled = {"traceparent": f"00-{IDS}-01"}
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(Receiver())
        batches: dict[str, Any] = {
            "OTEL_BSP_MAX_QUEUE_SIZE": "65536",
            "OTEL_BSP_SCHEDULE_DELAY": "1000",
        }
        variables: dict[str, Any] = {**receiver.environment, **batches}
        traced = Running("--otel", **variables)
        plain, quick = Running("--no-fast-path"), Running()
        sides = {
            "off, compiled": (quick, sampled),
            "off, Python": (plain, sampled),
            "on, sampled": (traced, sampled),
        }
        for service, _ in sides.values():
            stack.enter_context(service)
            service.call("POST", "/workers", worker_body(1, data_parallel_size=8))
            in_process_us(service, {}, 1.0)
        took: dict[str, list[float]] = {kind: [] for kind in sides}
        for _ in range(rounds):
            for kind, (service, headers) in sides.items():
                took[kind].append(in_process_us(service, headers, seconds))
        assert receiver.spans, "nothing was exported"
    show(took, "off, Python")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    without_spans(given.rounds)
    with_spans(given.rounds, given.seconds)


if __name__ == "__main__":
    main()
