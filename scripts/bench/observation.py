"""What it costs that traffic is observed: requests, the step of a second, and an answer.

    python scripts/bench/observation.py [requests] [steps] [answers] [--before FOLDER] [--rounds 40]

All, unless some are named.

    requests  CPU of /select and of a reservation's life (select_and_reserve, prefill_complete, two
              output blocks, free: five requests) by the fast path, from bytes to bytes, and in the
              core; microseconds a request.  With --before, a checkout of the project: the same
              there, in turns with here, and the median of the differences
    steps     one second of many partitions that all have traffic
    answers   GET /planner/observation of an hour in which every second had traffic, with so many
              ranks: CPU of all its steps, and of the longest (goal: 5 ms)
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
CALLS = 2000
TOKENS = list(range(256))
BLOCK_SIZE = 16
WORKERS = 8
PARTS = ("requests", "steps", "answers")
NAMES = ("fast select", "fast life", "core select", "core life")
HOUR_S = 3600
CLIENT = "Host: 127.0.0.1:8092\r\nAccept: */*\r\n"


def selector_of(ranks, model="m"):
    from indexer.index.prefix_index import PrefixIndex
    from select_service.core.selector import Selector, SelectorConfig

    config = SelectorConfig(use_kv_events=False, decisions_kept=4096)
    selector = Selector(config, lambda: PrefixIndex(1 << 16), rng=Random(1))
    for worker_id in range(ranks):
        register(selector, worker_id, model)
    return selector


def register(selector, worker_id, model):
    from select_service.bodies.workers import WorkerRegistration

    given = {"worker_id": worker_id, "model_name": model, "endpoint": f"http://w{worker_id}"}
    selector.register(WorkerRegistration(**given, block_size=BLOCK_SIZE))


def request_bytes(method, path, body=None):
    content, head = b"", f"{method} {path} HTTP/1.1\r\n{CLIENT}"
    if body is not None:
        content = json.dumps(body).encode()
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


def fast_verbs():
    """Calls of a service by the fast path: /select, and a life."""
    from select_service.fast.service_answerer import ServiceAnswerer
    from select_service.metrics.service_metrics import Metrics

    answerer = ServiceAnswerer(selector_of(WORKERS), Metrics("0"))
    asked = {"model_name": "m", "token_ids": TOKENS}
    select = request_bytes("POST", "/select", asked)
    life = [
        request_bytes("POST", "/select_and_reserve", {**asked, "reservation_id": "r"}),
        request_bytes("POST", "/reservations/r/prefill_complete", {}),
        *[request_bytes("POST", "/reservations/r/output_block", {})] * 2,
        request_bytes("DELETE", "/reservations/r"),
    ]

    def said(requests):
        for _ in range(CALLS // len(requests)):
            for each in requests:
                assert answerer.answer(each, 0)

    return [lambda: said([select]), lambda: said(life)]


def core_verbs():
    from select_service.bodies.selection import SelectAndReserveRequest, SelectRequest

    selector, now = selector_of(WORKERS), time.monotonic
    asked = SelectRequest(model_name="m", token_ids=TOKENS)
    booked = SelectAndReserveRequest(model_name="m", token_ids=TOKENS, reservation_id="r")

    def select():
        for _ in range(CALLS):
            selector.select(asked, now())

    def live():
        for _ in range(CALLS // 5):
            selector.select_and_reserve(booked, now())
            selector.prefill_complete("r", now())
            selector.output_block("r", None, now())
            selector.output_block("r", None, now())
            selector.free("r", now())

    return [select, live]


def child():
    """One line of costs, in microseconds a request, for every line that comes in."""
    verbs = [*fast_verbs(), *core_verbs()]
    for _ in sys.stdin:
        costs = []
        for verb in verbs:
            begun = time.process_time()
            verb()
            costs.append((time.process_time() - begun) / CALLS * 1e6)
        print(json.dumps(costs), flush=True)


def part_requests(chosen):
    folders = [ROOT] if chosen.before is None else [chosen.before, ROOT]
    children = [started(folder) for folder in folders]
    rounds = [[asked(each) for each in children] for _ in range(1 + chosen.rounds)][1:]
    for each in children:
        each.stdin.close()
        each.wait()
    print("| | before, us | now, us | more, us |\n|---|---|---|---|")
    for at, name in enumerate(NAMES):
        now = median(costs[-1][at] for costs in rounds)
        if chosen.before is None:
            print(f"| {name} | | {now:.2f} | |")
            continue
        before = median(costs[0][at] for costs in rounds)
        more = median(costs[1][at] - costs[0][at] for costs in rounds)
        print(f"| {name} | {before:.2f} | {now:.2f} | {more:+.2f} |")


def started(folder):
    command = [sys.executable, str(Path(__file__).resolve()), "child"]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True
    )


def asked(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def part_steps(chosen):
    from select_service.bodies.selection import SelectAndReserveRequest

    print("| partitions | a second, ms | steps | longest, ms |\n|---|---|---|---|")
    for n in (1, 64, 512):
        selector = selector_of(0)
        for number in range(n):
            register(selector, number, f"m{number}")
        sums, longest, steps = [], [], 0
        for second in range(6):
            for number in range(n):
                request = SelectAndReserveRequest(model_name=f"m{number}", token_ids=TOKENS)
                selector.select_and_reserve(request, float(second) + 0.5)
            costs = costs_of_second(selector, float(second) + 1.0)
            sums.append(sum(costs))
            longest.append(max(costs))
            steps = len(costs)
        print(f"| {n} | {median(sums):.2f} | {steps} | {median(longest):.2f} |")


def costs_of_second(selector, now):
    """Milliseconds of each step."""
    costs, more = [], True
    while more:
        begun = time.process_time()
        more = selector.observing.step(now)
        costs.append((time.process_time() - begun) * 1e3)
    return costs


def part_answers(chosen):
    from select_service.bodies.selection import SelectRequest
    from select_service.core.identity import PartitionKey
    from select_service.core.observing.observation import observation

    print("| ranks | all, ms | steps | longest, ms |\n|---|---|---|---|")
    for ranks in (8, 1024, 4096):
        selector = selector_of(ranks)
        for second in range(HOUR_S + 1):
            for length in (100, 1000, 2000):
                asked = SelectRequest(model_name="m", token_ids=TOKENS * (length // 100))
                if second % 60 == 0 or length == 100:
                    selector.select(asked, float(second))
            costs_of_second(selector, float(second))
        key, engines = PartitionKey("m", "default"), selector.gate.judge.engines
        found = []
        for _ in range(9):
            steps = observation(selector.observing, key, HOUR_S, engines, None, HOUR_S + 0.5)
            found.append(costs_of_steps(steps))
        longest = median(max(costs) for costs in found)
        print(f"| {ranks} | {median(map(sum, found)):.1f} | {len(found[0])} | {longest:.2f} |")


def costs_of_steps(steps):
    costs, going = [], True
    while going:
        begun = time.process_time()
        going = next(steps, steps) is not steps
        costs.append((time.process_time() - begun) * 1e3)
    return costs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", help=" or ".join(PARTS))
    parser.add_argument("--before", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    if chosen.part == ["child"]:
        child()
        return
    sys.path.insert(0, str(ROOT))
    for part in chosen.part or PARTS:
        globals()[f"part_{part}"](chosen)


if __name__ == "__main__":
    main()
