"""Cost of ranks with one cache group, now and at another commit, in turns.

    python -m scripts.bench.plain_ranks --before COMMIT [--rounds 40] [--without-instructions]

A case is match:ranks:blocks, event:blocks or run:blocks.  A match is one of conversations that half
of the ranks hold; an event is a message from payload to index, a store and the removal of the same
blocks in turn, and a run is 16 of them that were received together, as most are under load.
Microseconds are the fastest of the rounds; their ratio is the median over the rounds.
Instructions come from valgrind's callgrind, if installed, and are those of one call from Python:
those of a process with COUNTED_CALLS calls, less those of the same process without.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

# The child finds the package of the tree to measure by PYTHONPATH, and this file by its name.
CASES = ("match:8:64", "match:64:128", "match:256:1024", "event:1", "event:8", "run:8", "run:64")
CONVERSATIONS = 8
BLOCK_SIZE = 16
PROCESSOR = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
"""Processor of the machine code, as in a package: valgrind shows another processor, and code for
that would be compiled anew.
"""
CALLS = 2000
"""Calls of a round."""
COUNTED_CALLS = {"match": 40_000, "event": 5000, "run": 1000}
"""Calls per count of instructions: the starts of two processes differ by about a million."""
_COLLECTED = re.compile(r"Collected : (\d+)")


def make_match(ranks: int, blocks: int) -> Callable[[int], None]:
    """Return a function that matches prompts `n` times in an index of plain ranks."""
    import numpy as np

    from indexer.index.match_kernels import match_prompt
    from indexer.index.prefix_index import PrefixIndex
    from indexer.tiers import N_TIERS, Tier

    rng = np.random.default_rng(1)
    index = PrefixIndex(1 << 16)
    prompts = rng.integers(1, 2**63, (CONVERSATIONS, blocks)).astype(np.uint64)
    for writer in [index.open_slot() for _ in range(ranks)]:
        for prompt in prompts[rng.random(CONVERSATIONS) < 0.5]:
            prefix = prompt[: rng.integers(blocks // 8, blocks + 1)].copy()
            writer.store(Tier.GPU, None, prefix, prefix)
    header, matched = index.header, np.zeros((ranks, N_TIERS), np.int32)

    def match(n: int) -> None:
        for call in range(n):
            match_prompt(header, prompts[call % CONVERSATIONS], matched)

    return match


def make_events(blocks: int, *, in_runs: bool = False) -> Callable[[int], None]:
    """Return a function that gives `n` messages, or runs of them, to the feed of a plain rank."""
    import msgspec
    import numpy as np

    from indexer.events.event_feed import EventFeed
    from indexer.events.kv_event_source import KvSource
    from indexer.index.prefix_index import PrefixIndex

    writer = PrefixIndex(1 << 16).open_slot()
    feed = EventFeed(
        KvSource(
            worker_id=1,
            dp_rank=0,
            endpoint="tcp://127.0.0.1:1",
            replay_endpoint=None,
            block_size=BLOCK_SIZE,
            is_eagle=False,
            counted=True,
            writers={0: writer},
        )
    )
    feed.begin(0.0, nothing_older_comes=True)
    rng = np.random.default_rng(1)
    payloads = []
    for _ in range(CONVERSATIONS):
        names = rng.integers(1, 2**63, blocks).tolist()
        tokens = rng.integers(0, 128_000, blocks * BLOCK_SIZE).tolist()
        stored = ["BlockStored", names, None, tokens, BLOCK_SIZE, None, "GPU", None]
        events = stored, ["BlockRemoved", names, "GPU"]
        payloads += [msgspec.msgpack.encode([time.time(), [event], 0]) for event in events]
    numbers = iter(range(1 << 62))

    def receive(n: int) -> None:
        for call in range(n):
            feed.receive(next(numbers), payloads[call % len(payloads)], 0.0)

    def receive_runs(n: int) -> None:
        for _ in range(n):
            run = make_run([(next(numbers), payload) for payload in payloads])
            while run:
                run.first += feed.receive_run(run, 0.0) or _receive_first(feed, run)

    return receive_runs if in_runs else receive


def make_run(messages: list[tuple[int, bytes]]) -> Any:
    """Return numbered payloads as if they were received together."""
    import numpy as np

    from indexer.events.message_batch import MessageBatch
    from indexer.events.message_batch_layout import ROW_LENGTH

    rows, at = np.zeros((len(messages), ROW_LENGTH), np.int64), 0
    for row, (number, payload) in zip(rows, messages, strict=True):
        end = at + len(payload)
        row[:] = 3, 1, number, at, end, at, at, at, 0, 0
        at = end
    return MessageBatch(np.frombuffer(b"".join(payload for _, payload in messages), np.uint8), rows)


def _receive_first(feed: Any, run: Any) -> int:
    """Receive the first message of a run alone; return 1."""
    feed.receive(run.sequence_number, run.payload_ahead().tobytes(), 0.0)
    return 1


def make_case(case: str) -> Callable[[int], None]:
    """Return the function of a case."""
    kind, *numbers = case.split(":")
    if kind == "match":
        return make_match(*map(int, numbers))
    return make_events(*map(int, numbers), in_runs=kind == "run")


def answer_orders() -> None:
    """Measure in a child: for each number of calls that is read, write the microseconds of one."""
    run = make_case(sys.argv[2])
    run(2 * CONVERSATIONS)
    print("ready", flush=True)
    for line in sys.stdin:
        n = int(line)
        begin = time.thread_time_ns()
        run(n)
        print((time.thread_time_ns() - begin) / max(n, 1) / 1e3, flush=True)


def child_command(case: str, tree: Path) -> dict[str, Any]:
    """Return the arguments of a child process that measures a case with the sources of a tree."""
    variables = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", **PROCESSOR}
    command = [sys.executable, "-P", __file__, "--child", case]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return {"args": command, "env": {**os.environ, **variables}, "cwd": tree, **pipes}


def measure_us(case: str, trees: list[Path], rounds: int) -> list[list[float]]:
    """Return the microseconds of each round for each tree; the trees take turns."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_ready_child(case, tree)) for tree in trees]
        times: list[list[float]] = [[] for _ in trees]
        for turn in range(rounds):
            order = list(enumerate(children))
            for n, child in order if turn % 2 else reversed(order):
                times[n].append(_order(child, CALLS))
        return times


@contextlib.contextmanager
def _ready_child(case: str, tree: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(**child_command(case, tree)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", "the child failed"
        yield child
        child.communicate()


def _order(child: "subprocess.Popen[str]", calls: int) -> float:
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdin.write(f"{calls}\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def count_instructions(case: str, tree: Path) -> float:
    """Return the instructions of a call."""
    counts, n_calls = [], COUNTED_CALLS[case.partition(":")[0]]
    for calls in (0, n_calls):
        child = child_command(case, tree)
        valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        child["args"] = [*valgrind, *child["args"]]
        with subprocess.Popen(**child, stderr=subprocess.PIPE) as process:
            _, text = process.communicate(f"{calls}\n")
        found = _COLLECTED.search(text)
        assert found, text
        counts.append(int(found[1]))
    return (counts[1] - counts[0]) / n_calls


def measure_case(case: str, trees: list[Path], rounds: int, *, counts: bool) -> str:
    """Return the row of a case.  trees: before and now"""
    before, now = measure_us(case, trees, rounds)
    ratio = median(b / a for a, b in zip(before, now, strict=True))
    columns = [case, f"{min(before):.2f}", f"{min(now):.2f}", f"{ratio:.3f}"]
    if counts:
        n_before, n_now = (count_instructions(case, tree) for tree in trees)
        columns += [f"{n_before:,.0f}", f"{n_now:,.0f}", f"{n_now / n_before:.3f}"]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    """Print a table."""
    from scripts.bench.services_under_test import ROOT, unpack_commit

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="CASE")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--without-instructions", action="store_true")
    options = parser.parse_args()
    counts = shutil.which("valgrind") is not None and not options.without_instructions
    columns = ["case", "before, us", "now, us", "ratio"]
    columns += ["before, instructions", "now", "ratio"] if counts else []
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with unpack_commit(options.before) as tree:
        measure = partial(measure_case, trees=[tree, ROOT], rounds=options.rounds, counts=counts)
        for case in options.cases:
            print(measure(case), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        answer_orders()
    else:
        main()
