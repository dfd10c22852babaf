"""The generated workload: conversations over shared system prompts, all of it decided by one seed.

A conversation is one stream of tokens: system prompt, question, answer, question, answer ...  Turn
k asks with everything before its answer, so each prompt is a prefix of the next one; that is what
makes a prefix cache worth anything.  `trace` makes the same records from a recorded trace.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from select_service.simulator.engine import Job, Tokens, chain_keys

VOCABULARY = 32_000
"""Token ids are drawn from 1 to this, like those of a small language model."""

SYSTEM_PROMPTS = 12
SYSTEM_PROMPT_TOKENS = (400, 1200)
QUESTION_TOKENS = (16, 240)
ANSWER_BLOCKS = (1, 8)
TURNS = (1, 9)
THINK_S = 2.5
"""Mean pause between an answer and the next question of the same conversation, exponential."""

SESSIONS_PER_S_AND_RANK = 4.0
"""New conversations per virtual second, for each rank of the fleet."""


class Turn(NamedTuple):
    """One request: the first `prompt_tokens` of its session's stream, answered in whole blocks."""

    prompt_tokens: int
    output_blocks: int
    think_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation.  `tokens`: uint32, the whole stream; `keys`: one per full block of it."""

    name: str
    start_s: float
    tokens: Tokens
    keys: list[int]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions in order of their start.  Every policy is given the same one."""

    block_size: int
    sessions: tuple[Session, ...]

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def places_max(self) -> int:
        """Blocks of memory that the largest request needs: no cache may be smaller."""
        return max(self.job(s, i).places for s in self.sessions for i in range(len(s.turns)))

    def job(self, session: Session, turn_index: int) -> Job:
        """What one turn asks of a cache."""
        turn = session.turns[turn_index]
        return Job(
            keys=session.keys,
            tokens=session.tokens,
            prompt_blocks=turn.prompt_tokens // self.block_size,
            output_blocks=turn.output_blocks,
            has_tail=turn.prompt_tokens % self.block_size != 0,
        )


class Shape(NamedTuple):
    """What the command line decides about a generated workload."""

    requests: int
    block_size: int
    ranks: int
    seed: int


def generate(shape: Shape) -> Workload:
    """Conversations that make exactly `shape.requests` requests; equal shapes, equal workloads."""
    return Workload(shape.block_size, tuple(_sessions(shape)))


def random_tokens(rng: np.random.Generator, count: int) -> Tokens:
    """`count` token ids, uint32, uniform over the vocabulary."""
    return rng.integers(1, VOCABULARY + 1, size=count, dtype=np.uint32)


def _sessions(shape: Shape) -> Iterator[Session]:
    rng = np.random.default_rng(shape.seed)
    system_prompts = [
        random_tokens(rng, _between(rng, SYSTEM_PROMPT_TOKENS)) for _ in range(SYSTEM_PROMPTS)
    ]
    missing = shape.requests
    start_s = 0.0
    while missing > 0:
        start_s += rng.exponential(1.0 / (SESSIONS_PER_S_AND_RANK * shape.ranks))
        turns = min(_between(rng, TURNS), missing)
        # Low numbers are popular: the first system prompt starts about a third of all
        # conversations.
        prompt = system_prompts[min(rng.geometric(0.3) - 1, SYSTEM_PROMPTS - 1)]
        yield _conversation(rng, start_s, prompt, turns, shape.block_size)
        missing -= turns


def _conversation(
    rng: np.random.Generator, start_s: float, system_prompt: Tokens, turns: int, block_size: int
) -> Session:
    parts = [system_prompt]
    length = len(system_prompt)
    made: list[Turn] = []
    for _ in range(turns):
        question = random_tokens(rng, _between(rng, QUESTION_TOKENS))
        output_blocks = _between(rng, ANSWER_BLOCKS)
        answer = random_tokens(rng, output_blocks * block_size)
        made.append(Turn(length + len(question), output_blocks, float(rng.exponential(THINK_S))))
        parts += [question, answer]
        length += len(question) + len(answer)
    tokens = np.concatenate(parts)
    name = f"c{rng.integers(0, 2**32):08x}"
    return Session(name, start_s, tokens, chain_keys(tokens, block_size), tuple(made))


def _between(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    """Uniform, both bounds included."""
    return int(rng.integers(bounds[0], bounds[1] + 1))
