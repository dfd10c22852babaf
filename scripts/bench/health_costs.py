"""What health costs requests: in the core, and the latency of /select while engines are checked.

    python scripts/bench/health_costs.py [core] [latency] [--rounds 15] [--seconds 5] [--ranks 256]

Both, unless one is named, by pairs of rounds in turn, with health off and on, all ranks healthy.

    core     CPU of `select`, and of a reservation's life (select_and_reserve, prefill_complete,
             free), in microseconds: the medians, and the median of the differences
    latency  two services on one CPU with so many workers, POST /select from CONNECTIONS clients
             without pause: medians of the rounds of p50, p99, CPU per request and of the ratios;
             engines answer every check at once
"""

import argparse
import gc
import json
import multiprocessing
import socket
import sys
import time
from pathlib import Path
from random import Random
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from indexer.index.prefix_index import PrefixIndex
from scripts.bench.canaries import serve
from scripts.bench.contenders import Running, ours
from scripts.bench.http_load import hammer
from select_service.bodies.selection import SelectAndReserveRequest, SelectRequest
from select_service.bodies.workers import WorkerRegistration
from select_service.core.fitness.fitness import Fitness
from select_service.core.health.canary_prompts import default_prompts
from select_service.core.health.rules import HealthRules
from select_service.core.load.move_wishes import KeptWishes
from select_service.core.moving.learnt import Learnt
from select_service.core.selector import Selector, SelectorConfig

CONNECTIONS = 4
CALLS = 2000
TOKENS = list(range(1024))
NOW = 1000.0
PROMPTS = default_prompts()
PARTS = ("core", "latency")


def selector_of(ranks, is_on):
    """Wired as the service does it."""
    config = SelectorConfig(use_kv_events=False)
    selector = Selector(config, lambda: PrefixIndex(1 << 16), rng=Random(1))
    if is_on:
        fleet, ledger, touched = selector.fleet, selector.ledger, selector.touched
        rules = HealthRules()
        selector.fitness = Fitness(rules, lambda key: PROMPTS, fleet, ledger, touched)
        learnt = Learnt(KeptWishes())
        selector.decisions.keeps_wishes = True
        ledger.follow(learnt, tells_moves=False)
    for worker_id in range(ranks):
        endpoint = f"http://w{worker_id}"
        given = WorkerRegistration(
            worker_id=worker_id, model_name="m", endpoint=endpoint, block_size=16
        )
        selector.register(given)
        selector.settle(NOW)
    return selector


def selects(selector):
    request = SelectRequest(model_name="m", token_ids=TOKENS)
    for _ in range(CALLS):
        selector.select(request, NOW)


def lives(selector):
    request = SelectAndReserveRequest(model_name="m", token_ids=TOKENS, reservation_id="r")
    for _ in range(CALLS):
        selector.select_and_reserve(request, NOW)
        selector.prefill_complete("r", NOW)
        selector.free("r", NOW)


def part_core(chosen):
    print("| ranks | | off, us | on, us | more, us |\n|---|---|---|---|---|")
    for ranks in (8, chosen.ranks):
        selectors = [selector_of(ranks, is_on) for is_on in (False, True)]
        for name, verb in (("select", selects), ("life", lives)):
            pairs = [[cpu_us(verb, each) for each in selectors] for _ in range(1 + chosen.rounds)]
            off, on = zip(*pairs[1:], strict=True)
            more = median(b - a for a, b in pairs[1:])
            print(f"| {ranks} | {name} | {median(off):.2f} | {median(on):.2f} | {more:+.2f} |")


def cpu_us(verb, selector):
    gc.collect()
    begun = time.process_time()
    verb(selector)
    return (time.process_time() - begun) / CALLS * 1e6


def part_latency(chosen):
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    engine = multiprocessing.Process(target=serve, args=(listener,), daemon=True)
    engine.start()
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    body = json.dumps({"model_name": "m", "token_ids": TOKENS}).encode()
    flags = ("--health-checks", "on")
    plain = ours("off").with_variables(DYN_USE_KV_EVENTS="false")
    contenders = (plain, plain._replace(name="on").with_flags(*flags))
    found = []
    with Running(contenders[0]) as off, Running(contenders[1]) as on:
        for running in (off, on):
            running.wait_until_healthy()
            for worker_id in range(chosen.ranks):
                known = {"model_name": "m", "endpoint": endpoint}
                running.register_worker(worker_id, 16, **known)
        found = [
            [loaded(each, body, chosen.seconds) for each in (off, on)] for _ in range(chosen.rounds)
        ]
    engine.kill()
    print("| | off | on | ratio |\n|---|---|---|---|")
    for at, name in enumerate(("p50, us", "p99, us", "CPU per request, us")):
        off, on = (median(pair[which][at] for pair in found) for which in (0, 1))
        ratio = median(pair[1][at] / pair[0][at] for pair in found)
        print(f"| {name} | {off:.0f} | {on:.0f} | {ratio:.3f} |")


def loaded(running, body, seconds):
    """p50, p99 and CPU per request in microseconds."""
    cpu = running.cpu_s()
    result = hammer(running.port, [body], CONNECTIONS, seconds)
    assert not result.errors
    return result.p50_us, result.p99_us, (running.cpu_s() - cpu) / result.requests * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", help=" or ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, default=256)
    chosen = parser.parse_args()
    for part in chosen.part or PARTS:
        {"core": part_core, "latency": part_latency}[part](chosen)


if __name__ == "__main__":
    main()
