"""Prompts as chains of blocks: who shares which beginning with whom."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from select_service.replaying.hardware import BLOCK_TOKENS
from select_service.replaying.pool import Chain

NOTHING: Chain = np.empty(0, np.int32)


class Turn(NamedTuple):
    """One request.  chain: its blocks that will be full, of prompt and answer.

    think_s: from the end of the answer to the next turn of the session
    """

    chain: Chain
    prompt_tokens: int
    output_tokens: int
    think_s: float = 0.0


Session = tuple[Turn, ...]


def at_once(units: NDArray[np.float64], per_s: float) -> NDArray[np.float64]:
    """Starts in seconds from starts in mean gaps, at a steady rate."""
    return units / per_s


class Workload(NamedTuple):
    """What is asked of a fleet, whoever chooses and however fast it comes.

    units:    float64[n], starts of the sessions in mean gaps between them, ascending
    n_blocks: how many different blocks there are
    timed:    (units, sessions/s) -> seconds
    """

    sessions: tuple[Session, ...]
    units: NDArray[np.float64]
    n_blocks: int
    timed: Callable[[NDArray[np.float64], float], NDArray[np.float64]] = at_once

    @property
    def requests(self) -> int:
        return sum(map(len, self.sessions))

    @property
    def turns(self) -> float:
        """Requests of a session, mean."""
        return self.requests / len(self.sessions)


def without_pauses(workload: Workload) -> Workload:
    """The next turn of a session comes at the end of the last one."""
    sessions = tuple(
        tuple(turn._replace(think_s=0.0) for turn in session) for session in workload.sessions
    )
    return workload._replace(sessions=sessions)


class Blocks:
    """Gives every content behind every beginning a number of its own."""

    def __init__(self) -> None:
        self.count = 0
        self._shared: dict[tuple[int, object], Chain] = {}

    def fresh(self, n: int) -> Chain:
        """Blocks that nothing else has."""
        self.count += n
        return np.arange(self.count - n, self.count, dtype=np.int32)

    def shared(self, behind: int, label: object, n: int) -> Chain:
        """The blocks of a text behind a block (-1: at the begin); the same ones every time."""
        key = behind, label
        if key not in self._shared:
            self._shared[key] = self.fresh(n)
        assert len(self._shared[key]) == n
        return self._shared[key]


class Stream:
    """A text that grows, and its blocks."""

    def __init__(self, blocks: Blocks) -> None:
        self.tokens = 0
        self._blocks = blocks
        self._chain = NOTHING

    def append(self, tokens: int) -> "Stream":
        """Text that nobody else has."""
        self.tokens += tokens
        return self

    def append_shared(self, label: object, tokens: int) -> "Stream":
        """Text that others have, too; in whole blocks, for what begins within one is not shared."""
        assert self.tokens % BLOCK_TOKENS == tokens % BLOCK_TOKENS == 0
        chain = self.chain()
        behind = int(chain[-1]) if len(chain) else -1
        more = self._blocks.shared(behind, label, tokens // BLOCK_TOKENS)
        self._chain = np.concatenate([chain, more])
        self.tokens += tokens
        return self

    def cut(self, tokens: int) -> "Stream":
        """Only so much is left, and what comes next is another text."""
        self.tokens = min(self.tokens, tokens)
        self._chain = self._chain[: self.tokens // BLOCK_TOKENS]
        return self

    def chain(self) -> Chain:
        """Its full blocks."""
        missing = self.tokens // BLOCK_TOKENS - len(self._chain)
        if missing > 0:
            self._chain = np.concatenate([self._chain, self._blocks.fresh(missing)])
        return self._chain

    def turn(self, output_tokens: int, think_s: float = 0.0) -> Turn:
        """Ask with all of it; the answer becomes a part of it."""
        prompt_tokens = self.tokens
        self.append(output_tokens)
        return Turn(self.chain(), prompt_tokens, output_tokens, think_s)
