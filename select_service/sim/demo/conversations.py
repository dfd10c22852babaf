"""Generated workload: conversations over shared system prompts, determined by a seed.

A conversation is one stream of tokens: system prompt, question, answer, question, answer ... The
prompt of turn k is everything before its answer, so each prompt is a prefix of the next, which
makes prefix caches useful. `trace` builds the same records from a recorded trace.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from select_service.sim.demo.prefix_cache import CacheJob, Tokens, chain_keys

VOCABULARY = 32_000
"""Largest token id, as of a small language model; ids start at 1."""

SYSTEM_PROMPTS = 12
SYSTEM_PROMPT_TOKENS = (400, 1200)
QUESTION_TOKENS = (16, 240)
ANSWER_BLOCKS = (1, 8)
TURNS = (1, 9)
THINK_S = 2.5
"""Mean pause between an answer and the next question of a conversation, exponential, in seconds."""

SESSIONS_PER_S_AND_RANK = 4.0
"""New conversations per virtual second, for each rank of the fleet."""


class ConversationTurn(NamedTuple):
    """A request: the first `prompt_tokens` of its session's stream, answered in whole blocks."""

    prompt_tokens: int
    output_blocks: int
    think_s: float


@dataclass(frozen=True, slots=True)
class DemoConversation:
    """A conversation.

    `tokens`: uint32, the whole stream; `keys`: one per full block of the stream.
    """

    name: str
    start_s: float
    tokens: Tokens
    keys: list[int]
    turns: tuple[ConversationTurn, ...]


@dataclass(frozen=True, slots=True)
class ConversationWorkload:
    """Sessions in order of their start, the same for every policy."""

    block_size: int
    sessions: tuple[DemoConversation, ...]

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def places_max(self) -> int:
        """Blocks of memory that the largest request needs; no cache may be smaller."""
        return max(
            self.job_of_turn(s, i).places for s in self.sessions for i in range(len(s.turns))
        )

    def job_of_turn(self, session: DemoConversation, turn_index: int) -> CacheJob:
        """Return the cache requirements of a turn."""
        turn = session.turns[turn_index]
        return CacheJob(
            keys=session.keys,
            tokens=session.tokens,
            prompt_blocks=turn.prompt_tokens // self.block_size,
            output_blocks=turn.output_blocks,
            has_tail=turn.prompt_tokens % self.block_size != 0,
        )


class WorkloadShape(NamedTuple):
    """Parameters of a generated workload."""

    requests: int
    block_size: int
    ranks: int
    seed: int


def generate_workload(shape: WorkloadShape) -> ConversationWorkload:
    """Return conversations with exactly `shape.requests` requests; equal shapes give equal
    workloads.
    """
    return ConversationWorkload(shape.block_size, tuple(_generate_conversations(shape)))


def random_tokens(rng: np.random.Generator, count: int) -> Tokens:
    """Return `count` token ids, uint32, uniform over the vocabulary."""
    return rng.integers(1, VOCABULARY + 1, size=count, dtype=np.uint32)


def _generate_conversations(shape: WorkloadShape) -> Iterator[DemoConversation]:
    rng = np.random.default_rng(shape.seed)
    system_prompts = [
        random_tokens(rng, _uniform_between(rng, SYSTEM_PROMPT_TOKENS))
        for _ in range(SYSTEM_PROMPTS)
    ]
    missing = shape.requests
    start_s = 0.0
    while missing > 0:
        start_s += rng.exponential(1.0 / (SESSIONS_PER_S_AND_RANK * shape.ranks))
        # The last conversation is cut to the exact number of requests.
        turns = min(_uniform_between(rng, TURNS), missing)
        # Low numbers are popular: the first system prompt starts about a third of all
        # conversations.
        prompt = system_prompts[min(rng.geometric(0.3) - 1, SYSTEM_PROMPTS - 1)]
        yield _generate_conversation(rng, start_s, prompt, turns, shape.block_size)
        missing -= turns


def _generate_conversation(
    rng: np.random.Generator, start_s: float, system_prompt: Tokens, turns: int, block_size: int
) -> DemoConversation:
    parts = [system_prompt]
    length = len(system_prompt)
    made: list[ConversationTurn] = []
    for _ in range(turns):
        question = random_tokens(rng, _uniform_between(rng, QUESTION_TOKENS))
        output_blocks = _uniform_between(rng, ANSWER_BLOCKS)
        answer = random_tokens(rng, output_blocks * block_size)
        made.append(
            ConversationTurn(length + len(question), output_blocks, float(rng.exponential(THINK_S)))
        )
        parts += [question, answer]
        length += len(question) + len(answer)
    tokens = np.concatenate(parts)
    # Random names, so that two runs on one service rarely collide.
    name = f"c{rng.integers(0, 2**32):08x}"
    return DemoConversation(name, start_s, tokens, chain_keys(tokens, block_size), tuple(made))


def _uniform_between(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    """Return a uniform integer, both bounds included."""
    return int(rng.integers(bounds[0], bounds[1] + 1))
