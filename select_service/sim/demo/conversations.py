"""Generated workload: conversations over shared system prompts, determined by a seed.

A conversation is one stream of tokens: system prompt, question, answer, question, answer ... The
prompt of turn k is everything before its answer, so each prompt is a prefix of the next, which
makes prefix caches useful. `trace` builds the same records from a recorded trace.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from select_service.sim.engine.block_catalog import BlockCatalog, Tokens
from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.kv_block_pool import Chain

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


@dataclass(frozen=True, slots=True)
class DemoConversation:
    """A conversation.  tokens: uint32, the whole stream; turns: in blocks of the stream"""

    name: str
    start_s: float
    tokens: Tokens
    turns: tuple[ReplayRequest, ...]

    @property
    def chain(self) -> Chain:
        """Full blocks of the whole stream."""
        return self.turns[-1].chain

    def prompt(self, turn_index: int) -> list[int]:
        """Return the token ids of a prompt."""
        prompt: list[int] = self.tokens[: self.turns[turn_index].prompt_tokens].tolist()
        return prompt


@dataclass(frozen=True, slots=True)
class ConversationWorkload:
    """Sessions in order of their start, the same for every policy."""

    catalog: BlockCatalog
    sessions: tuple[DemoConversation, ...]

    @property
    def block_size(self) -> int:
        return self.catalog.block_size

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def places_max(self) -> int:
        """Blocks of memory that the largest request needs; no cache may be smaller."""
        return max(len(turn.chain) + 2 for session in self.sessions for turn in session.turns)

    def count_reachable(self) -> int:
        """Return the prompt blocks that one endless cache for the whole fleet would find."""
        seen: set[int] = set()
        found = 0
        for session in self.sessions:
            for turn in session.turns:
                # The last token of a prompt is always computed.
                usable = turn.chain[: (turn.prompt_tokens - 1) // self.block_size].tolist()
                found += sum(1 for block in usable if block in seen)
                seen.update(turn.chain.tolist())
        return found

    def replay_workload(self) -> ReplayWorkload:
        """Return the sessions for a world; their rate is 1."""
        starts = np.array([session.start_s for session in self.sessions])
        turns = tuple(session.turns for session in self.sessions)
        return ReplayWorkload(turns, starts, self.catalog.size)


def make_conversation(
    catalog: BlockCatalog,
    name: str,
    start_s: float,
    tokens: Tokens,
    turns: Sequence[tuple[int, int, float]],
) -> DemoConversation:
    """Return a conversation.

    turns: for each turn the tokens of prompt and answer, and the pause behind
    """
    chain = catalog.number_blocks(tokens)
    return DemoConversation(
        name,
        start_s,
        tokens,
        tuple(
            ReplayRequest(
                chain[: (prompt_tokens + output_tokens) // catalog.block_size],
                prompt_tokens,
                output_tokens,
                think_s,
            )
            for prompt_tokens, output_tokens, think_s in turns
        ),
    )


class WorkloadShape(NamedTuple):
    """Parameters of a generated workload."""

    requests: int
    block_size: int
    ranks: int
    seed: int


def generate_workload(
    shape: WorkloadShape, catalog: BlockCatalog | None = None
) -> ConversationWorkload:
    """Return conversations with exactly `shape.requests` requests; equal shapes give equal
    workloads.  catalog: None means a new catalog
    """
    catalog = catalog or BlockCatalog(shape.block_size)
    return ConversationWorkload(catalog, tuple(_generate_conversations(shape, catalog)))


def random_tokens(rng: np.random.Generator, count: int) -> Tokens:
    """Return `count` token ids, uint32, uniform over the vocabulary."""
    return rng.integers(1, VOCABULARY + 1, size=count, dtype=np.uint32)


def _generate_conversations(
    shape: WorkloadShape, catalog: BlockCatalog
) -> Iterator[DemoConversation]:
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
        yield _generate_conversation(rng, start_s, prompt, turns, catalog)
        missing -= turns


def _generate_conversation(
    rng: np.random.Generator,
    start_s: float,
    system_prompt: Tokens,
    turns: int,
    catalog: BlockCatalog,
) -> DemoConversation:
    parts = [system_prompt]
    length = len(system_prompt)
    made: list[tuple[int, int, float]] = []
    for _ in range(turns):
        question = random_tokens(rng, _uniform_between(rng, QUESTION_TOKENS))
        output_tokens = _uniform_between(rng, ANSWER_BLOCKS) * catalog.block_size
        answer = random_tokens(rng, output_tokens)
        made.append((length + len(question), output_tokens, float(rng.exponential(THINK_S))))
        parts += [question, answer]
        length += len(question) + len(answer)
    tokens = np.concatenate(parts)
    # Random names, so that two runs on one service rarely collide.
    name = f"c{rng.integers(0, 2**32):08x}"
    return make_conversation(catalog, name, start_s, tokens, made)


def _uniform_between(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    """Return a uniform integer, both bounds included."""
    return int(rng.integers(bounds[0], bounds[1] + 1))
