"""Requests to an overloaded fleet: conversations with shared prefixes, in three tiers.

The stream of requests does not depend on the results: a conversation continues whether its last
question was answered or not. So the offered load is the same in every run.
"""

from dataclasses import dataclass
from itertools import count
from random import Random
from typing import NamedTuple

from tests.simulation.overload_engine import BLOCK_TOKENS, Job

SYSTEM_PROMPTS = 8
SYSTEM_PROMPT_BLOCKS = (8, 24)
QUESTION_BLOCKS = (5.0, 0.8, 40)
"""Median, sigma and maximum of a lognormal distribution; the same below."""
ANSWER_TOKENS = (200.0, 0.6, 480)
TURNS_MEAN = 4
TURNS_MAX = 10
TIERS = {"premium": 0.2, "standard": 0.5, "best_effort": 0.3}
"""Shares of the conversations."""


class Turn(NamedTuple):
    """Request.

    keys: blocks of the prompt, then of the answer
    """

    keys: list[int]
    prompt_blocks: int
    output_tokens: int
    tier: str

    def job(self) -> Job:
        return Job(self.keys, self.prompt_blocks, self.output_tokens)


@dataclass(eq=False, slots=True)
class Conversation:
    """Conversation.

    turns: turns without an answer so far, in order
    """

    turns: list[Turn]


class Traffic:
    """Conversations, determined by a seed and the results of the turns.

    A conversation continues only after an answer: a lost turn is repeated later. So runs differ
    in the order of offered turns, but served turns have the same mix in all runs.
    """

    def __init__(self, seed: int, idle: int) -> None:
        """idle: number of conversations between two turns

        Any idle conversation may be next; more idle conversations mean longer pauses. New
        conversations replace ended ones. While many conversations wait for answers, additional
        conversations join in the middle, so that the mix of turns stays the same.
        """
        self._rng = Random(seed)
        self._numbers = count(1)
        self._systems = [
            self._keys(self._rng.randint(*SYSTEM_PROMPT_BLOCKS)) for _ in range(SYSTEM_PROMPTS)
        ]
        self._idle_min = {tier: round(share * idle) for tier, share in TIERS.items()}
        self._idle = {tier: self._under_way(tier, n) for tier, n in self._idle_min.items()}
        self._ended = dict.fromkeys(TIERS, 0)

    def next(self) -> Conversation:
        """Return a conversation with a first turn that is due now.

        The tier is drawn first, so that tiers with more refusals do not take over.
        """
        tier = self._rng.choices(list(TIERS), list(TIERS.values()))[0]
        idle = self._idle[tier]
        if len(idle) < self._idle_min[tier]:
            idle.append(self._another(tier))
        place = self._rng.randrange(len(idle))
        idle[place], idle[-1] = idle[-1], idle[place]
        return idle.pop()

    def ended(self, conversation: Conversation, answered: bool) -> None:
        """Record that the first turn of a conversation was answered or lost."""
        tier = conversation.turns[0].tier
        if answered:
            del conversation.turns[0]
        if conversation.turns:
            self._idle[tier].append(conversation)
        else:
            self._ended[tier] += 1

    def _another(self, tier: str) -> Conversation:
        if not self._ended[tier]:
            return self._under_way(tier, 1)[0]
        self._ended[tier] -= 1
        return self._new(tier)

    def _under_way(self, tier: str, n: int) -> list[Conversation]:
        """Return `n` conversations in their long-term state: every turn is equally likely."""
        new = [self._new(tier) for _ in range(8 * n)]
        chosen = self._rng.choices(new, [len(each.turns) for each in new], k=n)
        return [Conversation(each.turns[self._rng.randrange(len(each.turns)) :]) for each in chosen]

    def _keys(self, n: int) -> list[int]:
        """Return new blocks.

        An odd factor makes the numbers look like hashes, unique and 63 bits wide.

        """
        return [next(self._numbers) * 0x5851F42D4C957F2D % 2**63 for _ in range(n)]

    def _new(self, tier: str) -> Conversation:
        rng = self._rng
        stream = list(self._systems[min(int(rng.expovariate(0.5)), SYSTEM_PROMPTS - 1)])
        turns = []
        for _ in range(min(1 + int(rng.expovariate(1 / TURNS_MEAN)), TURNS_MAX)):
            stream = stream + self._keys(self._lognormal(*QUESTION_BLOCKS))
            prompt_blocks = len(stream)
            output_tokens = self._lognormal(*ANSWER_TOKENS)
            stream = stream + self._keys(-(-output_tokens // BLOCK_TOKENS))
            turns.append(Turn(stream, prompt_blocks, output_tokens, tier))
        return Conversation(turns)

    def _lognormal(self, median: float, sigma: float, most: int) -> int:
        return max(1, min(most, round(median * self._rng.lognormvariate(0.0, sigma))))
