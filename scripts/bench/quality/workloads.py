"""Made workloads: shapes that services see, with all that is drawn following from one seed.

Lengths are log-normal around the median given.  `Shapes` are functions that make one session; how
often which text is asked for is Zipf's.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from select_service.replaying.hardware import BLOCK_TOKENS, EQUAL, MIXED, Fleet
from select_service.replaying.streams import Blocks, Session, Stream, Turn, Workload, at_once

BURST_S, CYCLE_S = 8.0, 24.0
"""All arrivals of a cycle come within its first seconds."""


def length(rng: Generator, median: float, spread: float, most: int = 32_768) -> int:
    """spread: of its logarithm"""
    return int(np.clip(rng.lognormal(np.log(median), spread), 1, most))


def whole(tokens: float) -> int:
    """At least one block, in whole blocks."""
    return max(1, round(tokens / BLOCK_TOKENS)) * BLOCK_TOKENS


def zipf(rng: Generator, n: int, exponent: float = 1.0) -> int:
    """0 to n - 1, low ones more often."""
    weights = np.arange(1, n + 1) ** -exponent
    cumulated = np.cumsum(weights)
    return int(np.searchsorted(cumulated, rng.random() * cumulated[-1]))


def text_tokens(label: int, low: int, high: int) -> int:
    """Length of a shared text: the same every time, between the bounds, in whole blocks."""
    return whole(low + (high - low) * ((label * 0.618033988749895) % 1.0))


def conversation(blocks: Blocks, rng: Generator) -> Session:
    """Turns of people, behind one of 6 system prompts."""
    system = zipf(rng, 6)
    stream = Stream(blocks).append_shared(("system", system), text_tokens(system, 300, 1200))
    turns = []
    for _ in range(int(np.clip(rng.geometric(1 / 5), 1, 16))):
        stream.append(length(rng, 90, 1.0, 4000))
        think_s = float(rng.exponential(4.0))
        turns.append(stream.turn(length(rng, 220, 0.7, 1500), think_s))
    return tuple(turns)


def tenants(blocks: Blocks, rng: Generator) -> Session:
    """One question behind the long system prompt of one of 60 tenants."""
    tenant = zipf(rng, 60, 0.9)
    stream = Stream(blocks).append_shared(("tenant", tenant), text_tokens(tenant, 2000, 9000))
    stream.append(length(rng, 150, 0.8, 2000))
    return (stream.turn(length(rng, 150, 0.6, 1000)),)


def agent(blocks: Blocks, rng: Generator) -> Session:
    """A tool calling agent: what it has read grows and grows."""
    kind = zipf(rng, 5)
    stream = Stream(blocks).append_shared(("agent", kind), text_tokens(kind, 2500, 6000))
    stream.append(length(rng, 300, 0.5, 2000))
    turns = []
    for _ in range(int(rng.integers(6, 20))):
        think_s = float(rng.exponential(1.5))
        turns.append(stream.turn(length(rng, 70, 0.6, 400), think_s))
        stream.append(length(rng, 500, 1.1, 6000))
    return tuple(turns)


def retrieval(blocks: Blocks, rng: Generator) -> Session:
    """A question behind some of 300 documents, popular ones first."""
    stream = Stream(blocks).append_shared("instructions", 384)
    for document in sorted({zipf(rng, 300, 1.1) for _ in range(int(rng.integers(2, 6)))}):
        stream.append_shared(document, text_tokens(document, 500, 1800))
    stream.append(length(rng, 60, 0.6, 400))
    return (stream.turn(length(rng, 180, 0.6, 1000)),)


def few_shot(blocks: Blocks, rng: Generator) -> Session:
    """A short text behind one of 40 templates with examples, and a very short answer."""
    template = zipf(rng, 40, 0.8)
    stream = Stream(blocks).append_shared(("template", template), text_tokens(template, 1200, 4000))
    stream.append(length(rng, 200, 0.7, 2000))
    return (stream.turn(length(rng, 24, 0.6, 128)),)


def completion(blocks: Blocks, rng: Generator) -> Session:
    """Code around the cursor: the next prompt shares a beginning with the last one."""
    stream = Stream(blocks).append(length(rng, 6000, 0.6, 20_000))
    turns = []
    for _ in range(int(rng.integers(4, 14))):
        turns.append(stream.turn(length(rng, 40, 0.6, 200), float(rng.exponential(3.0))))
        kept = int(turns[-1].prompt_tokens * rng.beta(5, 1))
        stream.cut(kept).append(length(rng, 600, 0.9, 5000))
    return tuple(turns)


def mixed(blocks: Blocks, rng: Generator) -> Session:
    """Three of four requests are short; the others are long, and every other one of those twins."""
    if rng.random() < 0.75:
        stream = Stream(blocks).append_shared(("chat", zipf(rng, 8)), 512)
        stream.append(length(rng, 250, 0.8, 2000))
        return (stream.turn(length(rng, 200, 0.8, 1500)),)
    stream = Stream(blocks)
    if rng.random() < 0.5:
        book = zipf(rng, 30, 0.7)
        stream.append_shared(("book", book), text_tokens(book, 6000, 24_000))
    else:
        stream.append(length(rng, 9000, 0.6, 28_000))
    stream.append(length(rng, 120, 0.6, 1000))
    return (stream.turn(length(rng, 300, 0.6, 1500)),)


def anything(blocks: Blocks, rng: Generator) -> Session:
    """Conversations, tenants, templates and agents on the same fleet."""
    shapes = (conversation, tenants, few_shot, retrieval)
    return shapes[int(rng.integers(len(shapes)))](blocks, rng)


def in_bursts(units: NDArray[np.float64], per_s: float) -> NDArray[np.float64]:
    """Starts in seconds, when all of a cycle come in its first part."""
    steady = units / per_s
    cycle = np.floor(steady / CYCLE_S)
    within: NDArray[np.float64] = cycle * CYCLE_S + (steady - cycle * CYCLE_S) * BURST_S / CYCLE_S
    return within


class Kind(NamedTuple):
    """A workload and the fleet that serves it.  requests: of one run."""

    session: Callable[[Blocks, Generator], Session]
    requests: int
    fleet: Fleet = EQUAL
    timed: Callable[[NDArray[np.float64], float], NDArray[np.float64]] = at_once


KINDS = {
    "conversation": Kind(conversation, 4000),
    "tenants": Kind(tenants, 2500),
    "agents": Kind(agent, 2500),
    "retrieval": Kind(retrieval, 2500),
    "few-shot": Kind(few_shot, 3500),
    "completion": Kind(completion, 2500),
    "mixed lengths": Kind(mixed, 2500),
    "bursts": Kind(anything, 2500, timed=in_bursts),
    "conversation, mixed fleet": Kind(conversation, 4000, MIXED),
    "tenants, mixed fleet": Kind(tenants, 2500, MIXED),
}


def made(kind: Kind, seed: int, requests: int | None = None) -> Workload:
    """requests: at least so many, instead of what the kind says"""
    rng = np.random.default_rng(seed)
    blocks = Blocks()
    sessions = tuple(_sessions(kind, blocks, rng, requests or kind.requests))
    units = np.cumsum(rng.exponential(1.0, len(sessions)))
    return Workload(sessions, units, blocks.count, kind.timed)


def _sessions(kind: Kind, blocks: Blocks, rng: Generator, requests: int) -> Iterator[Session]:
    missing = requests
    while missing > 0:
        session: tuple[Turn, ...] = kind.session(blocks, rng)
        missing -= len(session)
        yield session
