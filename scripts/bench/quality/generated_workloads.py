"""Generated workloads in the shapes of real services, determined by one seed.

Lengths are log-normal around the given median. `Shapes` are functions that make a session; the
popularity of texts is Zipf's.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from select_service.sim.engine.block_streams import (
    ReplayRequest,
    ReplaySession,
    ReplayWorkload,
    constant_rate_starts,
)
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, EQUAL, MIXED, Fleet
from select_service.sim.engine.text_streams import BlockNumbers, TextStream

Lengths: TypeAlias = tuple[float, float, int]
"""Median, spread and maximum of random lengths, see `draw_length`."""
BURST_S, CYCLE_S = 8.0, 24.0
"""Seconds with arrivals at the begin of a cycle, and seconds of a cycle."""


def draw_length(rng: Generator, median: float, spread: float, most: int = 32_768) -> int:
    """Return a random length.  spread: standard deviation of the logarithm"""
    return int(np.clip(rng.lognormal(np.log(median), spread), 1, most))


def whole_blocks(tokens: float) -> int:
    """Return a length in whole blocks, at least one."""
    return max(1, round(tokens / BLOCK_TOKENS)) * BLOCK_TOKENS


def draw_zipf(rng: Generator, n: int, exponent: float = 1.0) -> int:
    """Return 0 to n - 1, low numbers more often."""
    weights = np.arange(1, n + 1) ** -exponent
    cumulated = np.cumsum(weights)
    return int(np.searchsorted(cumulated, rng.random() * cumulated[-1]))


def text_tokens(label: int, low: int, high: int) -> int:
    """Return the length of a shared text, constant, between the bounds, in whole blocks."""
    return whole_blocks(low + (high - low) * ((label * 0.618033988749895) % 1.0))


def conversation(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return turns of a person behind one of 6 system prompts."""
    system = draw_zipf(rng, 6)
    stream = TextStream(blocks).append_shared(("system", system), text_tokens(system, 300, 1200))
    n_turns = int(np.clip(rng.geometric(1 / 5), 1, 16))
    return ask_in_turns(stream, rng, n_turns, (90, 1.0, 4000), (220, 0.7, 1500), 4.0)


def ask_in_turns(
    stream: TextStream,
    rng: Generator,
    n_turns: int,
    question: Lengths,
    answer: Lengths,
    think_s: float,
) -> ReplaySession:
    """Return questions behind a text, each with the answers before it.

    think_s: mean pause before a question
    """
    turns = []
    for _ in range(n_turns):
        stream.append_unique(draw_length(rng, *question))
        pause_s = float(rng.exponential(think_s))
        turns.append(stream.make_request(draw_length(rng, *answer), pause_s))
    return tuple(turns)


def tenants(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return a question behind the long system prompt of a tenant, of 60."""
    tenant = draw_zipf(rng, 60, 0.9)
    stream = TextStream(blocks).append_shared(("tenant", tenant), text_tokens(tenant, 2000, 9000))
    stream.append_unique(draw_length(rng, 150, 0.8, 2000))
    return (stream.make_request(draw_length(rng, 150, 0.6, 1000)),)


def agent(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return the calls of an agent with tools and an ever longer context."""
    kind = draw_zipf(rng, 5)
    stream = TextStream(blocks).append_shared(("agent", kind), text_tokens(kind, 2500, 6000))
    stream.append_unique(draw_length(rng, 300, 0.5, 2000))
    turns = []
    for _ in range(int(rng.integers(6, 20))):
        think_s = float(rng.exponential(1.5))
        turns.append(stream.make_request(draw_length(rng, 70, 0.6, 400), think_s))
        stream.append_unique(draw_length(rng, 500, 1.1, 6000))
    return tuple(turns)


def retrieval(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return a question behind some of 300 documents, popular documents first."""
    stream = TextStream(blocks).append_shared("instructions", 384)
    for document in sorted({draw_zipf(rng, 300, 1.1) for _ in range(int(rng.integers(2, 6)))}):
        stream.append_shared(document, text_tokens(document, 500, 1800))
    stream.append_unique(draw_length(rng, 60, 0.6, 400))
    return (stream.make_request(draw_length(rng, 180, 0.6, 1000)),)


def few_shot(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return a short text behind one of 40 templates with examples, and a very short answer."""
    template = draw_zipf(rng, 40, 0.8)
    stream = TextStream(blocks).append_shared(
        ("template", template), text_tokens(template, 1200, 4000)
    )
    stream.append_unique(draw_length(rng, 200, 0.7, 2000))
    return (stream.make_request(draw_length(rng, 24, 0.6, 128)),)


def completion(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return code around the cursor: each prompt shares a beginning with the previous."""
    stream = TextStream(blocks).append_unique(draw_length(rng, 6000, 0.6, 20_000))
    turns = []
    for _ in range(int(rng.integers(4, 14))):
        turns.append(
            stream.make_request(draw_length(rng, 40, 0.6, 200), float(rng.exponential(3.0)))
        )
        kept = int(turns[-1].prompt_tokens * rng.beta(5, 1))
        stream.shorten_to(kept).append_unique(draw_length(rng, 600, 0.9, 5000))
    return tuple(turns)


def mixed(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return a short request in three of four cases, else long requests, half of these as twins."""
    if rng.random() < 0.75:
        stream = TextStream(blocks).append_shared(("chat", draw_zipf(rng, 8)), 512)
        stream.append_unique(draw_length(rng, 250, 0.8, 2000))
        return (stream.make_request(draw_length(rng, 200, 0.8, 1500)),)
    stream = TextStream(blocks)
    if rng.random() < 0.5:
        book = draw_zipf(rng, 30, 0.7)
        stream.append_shared(("book", book), text_tokens(book, 6000, 24_000))
    else:
        stream.append_unique(draw_length(rng, 9000, 0.6, 28_000))
    stream.append_unique(draw_length(rng, 120, 0.6, 1000))
    return (stream.make_request(draw_length(rng, 300, 0.6, 1500)),)


def anything(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return conversations, tenants, templates and agents on the same fleet."""
    shapes = (conversation, tenants, few_shot, retrieval)
    return shapes[int(rng.integers(len(shapes)))](blocks, rng)


def in_bursts(units: NDArray[np.float64], per_s: float) -> NDArray[np.float64]:
    """Return starts in seconds, all in the first part of each cycle."""
    steady = units / per_s
    cycle = np.floor(steady / CYCLE_S)
    within: NDArray[np.float64] = cycle * CYCLE_S + (steady - cycle * CYCLE_S) * BURST_S / CYCLE_S
    return within


class WorkloadKind(NamedTuple):
    """A workload and a fleet.  requests: number of a run"""

    session: Callable[[BlockNumbers, Generator], ReplaySession]
    requests: int
    fleet: Fleet = EQUAL
    timed: Callable[[NDArray[np.float64], float], NDArray[np.float64]] = constant_rate_starts


KINDS = {
    "conversation": WorkloadKind(conversation, 4000),
    "tenants": WorkloadKind(tenants, 2500),
    "agents": WorkloadKind(agent, 2500),
    "retrieval": WorkloadKind(retrieval, 2500),
    "few-shot": WorkloadKind(few_shot, 3500),
    "completion": WorkloadKind(completion, 2500),
    "mixed lengths": WorkloadKind(mixed, 2500),
    "bursts": WorkloadKind(anything, 2500, timed=in_bursts),
    "conversation, mixed fleet": WorkloadKind(conversation, 4000, MIXED),
    "tenants, mixed fleet": WorkloadKind(tenants, 2500, MIXED),
}


def make_workload(kind: WorkloadKind, seed: int, requests: int | None = None) -> ReplayWorkload:
    """Return the workload of a kind.  requests: least number; None means that of the kind"""
    rng = np.random.default_rng(seed)
    blocks = BlockNumbers()
    sessions = tuple(_sessions(kind, blocks, rng, requests or kind.requests))
    units = np.cumsum(rng.exponential(1.0, len(sessions)))
    return ReplayWorkload(sessions, units, blocks.count, kind.timed)


def _sessions(
    kind: WorkloadKind, blocks: BlockNumbers, rng: Generator, requests: int
) -> Iterator[ReplaySession]:
    missing = requests
    while missing > 0:
        session: tuple[ReplayRequest, ...] = kind.session(blocks, rng)
        missing -= len(session)
        yield session
