"""What a client pays for hashing prompts by itself, in a process that has nothing else to do.

    python scripts/bench/client_hashing.py [--tokens 8192] [--block-size 16] [--rounds 40]

Microseconds, the least and the median of rounds; the goal is 300 for 8,192 tokens in blocks of 16
on a machine that counts to a million in 20 ms, which is told besides:

    whole     a new `PromptHasher`, all tokens of a list, and `prompt`
    array     the same, of a numpy array, if numpy is installed
    grows     the tokens are there; 256 more, and `prompt`
    in JSON   the text of the request's list of tokens, against that of its hashes
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from select_service.client.hashing import HashedPrompt, PromptHasher

VOCABULARY = 150_000
MORE_TOKENS = 256
GOAL_US, GOAL_LOOP_MS = 300.0, 20.0
PER_ROUND = 10


def timed_us(rounds: int, call: Callable[[], object]) -> list[float]:
    """Of one call, mean of each round."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(PER_ROUND):
            call()
        found.append((time.perf_counter_ns() - begin) / PER_ROUND / 1000)
    return found


def loop_ms() -> float:
    """A million turns of an empty loop; the least of three."""
    found = []
    for _ in range(3):
        begin = time.perf_counter_ns()
        for _ in range(1_000_000):
            pass
        found.append((time.perf_counter_ns() - begin) / 1e6)
    return min(found)


def whole(block_size: int, tokens: Sequence[int]) -> HashedPrompt:
    hasher = PromptHasher(block_size)
    hasher.extend(tokens)
    return hasher.prompt()


def growing(block_size: int, tokens: list[int], rounds: int) -> list[float]:
    """One conversation after the other."""
    found = []
    for _ in range(rounds):
        hasher = PromptHasher(block_size)
        hasher.extend(tokens)
        begin = time.perf_counter_ns()
        hasher.extend(tokens[:MORE_TOKENS])
        hasher.prompt()
        found.append((time.perf_counter_ns() - begin) / 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    chance = random.Random(1)
    tokens = [chance.randrange(VOCABULARY) for _ in range(given.tokens)]
    before_ms = loop_ms()
    results = {"whole": timed_us(given.rounds, lambda: whole(given.block_size, tokens))}
    try:
        import numpy as np
    except ImportError:
        print("array: numpy is not installed")
    else:
        array: Any = np.array(tokens)
        results["array"] = timed_us(given.rounds, lambda: whole(given.block_size, array))
    results["grows"] = growing(given.block_size, tokens, given.rounds * PER_ROUND)
    slowest_ms = max(before_ms, loop_ms())
    for name, found in results.items():
        print(f"{name:8} {min(found):8.1f} {median(found):8.1f} us")
    print(
        f"in JSON  {len(json.dumps(tokens))} against "
        f"{len(json.dumps(whole(given.block_size, tokens)))} bytes"
    )
    goal_us = GOAL_US * given.tokens / 8192 * max(1.0, before_ms / GOAL_LOOP_MS)
    print(f"a million turns: {before_ms:.1f} to {slowest_ms:.1f} ms; the goal is {goal_us:.0f} us")


if __name__ == "__main__":
    main()
