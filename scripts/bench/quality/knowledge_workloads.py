"""Workloads of sessions for the benchmark of what a selector knows, in blocks of 512 tokens.

Engines: Llama 3.1 8B on H100, 30 us per prompt token, 400,000 tokens of cache each. Lengths are
log-normal around the given median.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator

from scripts.bench.quality.generated_workloads import ask_in_turns, draw_length, draw_zipf
from scripts.bench.quality.trace_workloads import STAMP_S, trace_workload
from select_service.files.request_trace import RecordedRequest
from select_service.sim.engine.block_streams import ReplaySession, ReplayWorkload
from select_service.sim.engine.gpu_hardware import H100_80, PARAMETERS
from select_service.sim.engine.text_streams import BlockNumbers, TextStream

BLOCK = 512
CACHE_TOKENS = 400_000
PREFILL_S = 30e-6
"""Seconds per prompt token."""
ENGINE = H100_80._replace(
    name="H100, 30 us a token",
    flops=2 * PARAMETERS / PREFILL_S,
    declared_blocks=CACHE_TOKENS // BLOCK,
    block_tokens=BLOCK,
)
Shape: TypeAlias = Callable[[BlockNumbers, Generator], ReplaySession]


class Rollouts(NamedTuple):
    """Rollouts in groups; the members of a group begin with the same prompt.

    rules, task:        blocks that all groups share, and blocks of a group
    output, result:     median tokens of an answer, and of the text behind
    spread_s:           seconds in which the members of a group begin
    """

    members: int
    turns: tuple[int, int]
    rules: int
    task: int
    output: float
    result: float
    tool_s: float
    spread_s: float = 0.0

    def make_member(self, blocks: BlockNumbers, rng: Generator, group: int) -> ReplaySession:
        stream = TextStream(blocks).append_shared("rules", self.rules * BLOCK)
        stream.append_shared(("task", group), self.task * BLOCK)
        # Engines compute the tokens behind the last full block again, 16 where blocks are usual.
        stream.append_unique(16)
        turns = []
        for _ in range(int(rng.integers(*self.turns, endpoint=True))):
            output_tokens = draw_length(rng, self.output, 0.6, 4000)
            turns.append(stream.make_request(output_tokens, float(rng.exponential(self.tool_s))))
            stream.append_unique(draw_length(rng, self.result, 0.8, 8000))
        return tuple(turns)


ASYNCHRONOUS = Rollouts(16, (1, 4), 2, 3, 500, 250, 2.0)


def agent_session(median: float, turns: tuple[int, int], output: float, think_s: float) -> Shape:
    """Return a maker of calls of an agent.  median: tokens that a tool appends"""

    def make(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
        kind = draw_zipf(rng, 5)
        stream = TextStream(blocks).append_shared(("agent", kind), (6 + 2 * kind) * BLOCK)
        stream.append_unique(draw_length(rng, 400, 0.6, 4000))
        made = []
        for _ in range(int(rng.integers(*turns, endpoint=True))):
            pause_s = float(rng.exponential(think_s))
            made.append(stream.make_request(draw_length(rng, output, 0.6, 1000), pause_s))
            stream.append_unique(draw_length(rng, median, 1.0, 8000))
        return tuple(made)

    return make


def document_session(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return questions about a document, of 120 with 20,000 to 60,000 tokens."""
    document = draw_zipf(rng, 120, 0.8)
    size = 40 + (37 * document) % 78
    stream = TextStream(blocks).append_shared(("document", document), size * BLOCK)
    n_turns = int(rng.integers(1, 6, endpoint=True))
    return ask_in_turns(stream, rng, n_turns, (60, 0.6, 400), (250, 0.6, 1000), 10.0)


def tenant_session(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return a question behind the system prompt of a tenant, of 60."""
    tenant = draw_zipf(rng, 60, 0.9)
    stream = TextStream(blocks).append_shared(("tenant", tenant), (8 + tenant % 24) * BLOCK)
    stream.append_unique(draw_length(rng, 300, 0.8, 4000))
    return (stream.make_request(draw_length(rng, 150, 0.6, 1000)),)


def mixed_session(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return a short request, or in one of eight cases a long request with a short answer."""
    stream = TextStream(blocks)
    if rng.random() < 7 / 8:
        stream.append_shared(("chat", draw_zipf(rng, 8)), BLOCK)
        stream.append_unique(draw_length(rng, 300, 0.8, 3000))
        return (stream.make_request(draw_length(rng, 250, 0.7, 1500)),)
    stream.append_unique(draw_length(rng, 16_000, 0.5, 60_000))
    return (stream.make_request(draw_length(rng, 200, 0.6, 1000)),)


def crowded_session(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return a question behind one of 150 texts, all used alike.

    The texts have 3 million tokens: with one copy of each they nearly fill the caches of the fleet,
    and each second copy evicts another text.
    """
    text = int(rng.integers(150))
    stream = TextStream(blocks).append_shared(("text", text), (32 + text % 16) * BLOCK)
    stream.append_unique(draw_length(rng, 300, 0.8, 4000))
    return (stream.make_request(draw_length(rng, 150, 0.6, 1000)),)


def public_session(blocks: BlockNumbers, rng: Generator) -> ReplaySession:
    """Return one of several questions about 800 long texts.

    In place of Mooncake's synthetic trace: prompts of 30 blocks, of which 64 % are repeated.
    """
    text = draw_zipf(rng, 800, 0.6)
    size = int(np.clip(np.random.default_rng(text).lognormal(np.log(20), 0.8), 1, 300))
    stream = TextStream(blocks).append_shared(("text", text), size * BLOCK)
    turns = []
    for _ in range(int(rng.geometric(0.5))):
        stream.append_unique(draw_length(rng, 400, 1.0, 8000))
        pause_s = float(rng.exponential(15.0))
        turns.append(stream.make_request(draw_length(rng, 150, 0.7, 1500), pause_s))
    return tuple(turns)


SHAPES: dict[str, Shape] = {
    "agentlong": agent_session(900, (12, 36), 70, 5.0),
    "agentic": agent_session(1500, (4, 16), 150, 6.0),
    "docqa": document_session,
    "tenants, H100": tenant_session,
    "longshort": mixed_session,
    "prefix thrash": crowded_session,
    "synthetic": public_session,
}
GROUPS: dict[str, Rollouts] = {
    "rlasync": ASYNCHRONOUS,
    "groups": Rollouts(32, (1, 4), 2, 14, 500, 250, 2.0),
    "siblings": Rollouts(12, (1, 1), 2, 14, 150, 250, 2.0, 1.0),
}
"""Workloads with sessions in groups."""
REQUESTS = 5_000
"""Requests of a run, longer than the lifetime of a session at capacity."""
FLEET = (ENGINE,) * 8


def make_session_workload(name: str, seed: int, requests: int | None) -> ReplayWorkload:
    """Return a workload of SHAPES or GROUPS."""
    rng = np.random.default_rng([seed, *name.encode()])
    blocks = BlockNumbers(BLOCK)
    sessions: list[ReplaySession] = []
    groups: list[int] = []
    missing = requests or REQUESTS
    while missing > 0:
        group = groups[-1] + 1 if groups else 0
        if (rollouts := GROUPS.get(name)) is not None:
            made = [rollouts.make_member(blocks, rng, group) for _ in range(rollouts.members)]
        else:
            made = [SHAPES[name](blocks, rng)]
        sessions += made
        groups += [group] * len(made)
        missing -= sum(map(len, made))
    # Members of a group arrive together, so a group takes the time of all members.
    starts = np.cumsum(rng.exponential(1.0, groups[-1] + 1)) * len(sessions) / (groups[-1] + 1)
    spread_s = GROUPS[name].spread_s if name in GROUPS else 0.0
    if not spread_s:
        return ReplayWorkload(tuple(sessions), starts[groups], blocks.count)
    later_s = rng.uniform(0.0, spread_s, len(sessions))
    return ReplayWorkload(
        tuple(sessions), starts[groups], blocks.count, lambda units, per_s: units / per_s + later_s
    )


def conversation_workload(
    rows: list[RecordedRequest], seed: int, requests: int | None
) -> ReplayWorkload:
    """Return a part of Mooncake's trace; requests continue the session with the same blocks."""
    n = requests or REQUESTS
    workload = trace_workload(rows, seed, n, STAMP_S, BLOCK)
    owners: dict[int, int] = {}
    labels = []
    for number, (turn,) in enumerate(workload.sessions):
        # The first block is the system prompt of many.
        prompt = turn.chain[1 : turn.prompt_tokens // BLOCK].tolist()
        label = next((owners[each] for each in reversed(prompt) if each in owners), number)
        owners.update(dict.fromkeys(prompt, label))
        labels.append(label)
    return workload._replace(labels=tuple(labels))


def make_step(rollouts: Rollouts, number: int, seed: int) -> ReplayWorkload:
    """Return a synchronous step: all rollouts begin within a second."""
    rng = np.random.default_rng([seed, number])
    blocks = BlockNumbers(BLOCK)
    sessions = tuple(
        rollouts.make_member(blocks, rng, member // rollouts.members) for member in range(number)
    )
    return ReplayWorkload(sessions, np.sort(rng.uniform(0.0, 1.0, number)), blocks.count)
