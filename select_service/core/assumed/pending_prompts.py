"""Prompts assumed beside events, until the engine has announced the blocks.

The assumption of a prompt ends when the engine has announced all blocks, or contradicts the
assumption: by a removal from the announced part, or a clear.  Other ends (time, memory, the rank)
belong to `AssumedBlocks`.
"""

from collections import deque
from dataclasses import dataclass

from indexer.hashing.block_hashing import Hashes
from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from indexer.tiers import Tier
from select_service.core.assumed.assumed_blocks import AssumedBlocks

PROMPTS_MAX = 4096
"""Most prompts waiting in a process; beyond this limit the oldest end."""
BLOCKS_MAX = 1 << 20
"""Blocks of the waiting prompts, 16 bytes each."""
CHECKS_PER_STEP = 128
"""Prompts looked up per step, some microseconds each."""


@dataclass(slots=True)
class PendingPrompt:
    """Prompt of a booking.

    path, names: uint64[n], block hashes and names of the assumed blocks
    writer: writer of the rank's announcements at the booking
    n_clears: number of clears of the slot before the booking
    confirmed: leading blocks that the engine has announced so far
    """

    assumed: AssumedBlocks
    index: PrefixIndex
    writer: SlotWriter
    path: Hashes
    names: Hashes
    booked_at: float
    ends_at: float
    n_clears: int
    confirmed: int = 0


class PendingPrompts:
    """All waiting prompts of a process, in the order of booking."""

    def __init__(self) -> None:
        self._prompts: deque[PendingPrompt] = deque()
        self._n_blocks = 0
        self.n_confirmed = self.n_withdrawn = self.n_expired = 0
        """Prompts by end: announced, removed or cleared by the engine, by time or memory."""

    def __len__(self) -> int:
        return len(self._prompts)

    def add_prompt(self, prompt: PendingPrompt) -> None:
        """Wait for the announcement of a prompt."""
        self._prompts.append(prompt)
        self._n_blocks += len(prompt.path)
        while len(self._prompts) > PROMPTS_MAX or self._n_blocks > BLOCKS_MAX:
            self._forget(self._take_first())
            self.n_expired += 1

    def run_step(self, now: float) -> bool:
        """Look some prompts up; return False, as the others wait for the next turn."""
        for _ in range(min(CHECKS_PER_STEP, len(self._prompts))):
            prompt = self._take_first()
            if not self._has_ended(prompt, now):
                self._prompts.append(prompt)
                self._n_blocks += len(prompt.path)
        return False

    def _take_first(self) -> PendingPrompt:
        prompt = self._prompts.popleft()
        self._n_blocks -= len(prompt.path)
        return prompt

    def _has_ended(self, prompt: PendingPrompt, now: float) -> bool:
        writer = prompt.writer
        if not writer.is_open or now >= prompt.ends_at:
            self.n_expired += 1  # the blocks themselves expire or leave with the rank
            return True
        held = prompt.index.count_held(writer.slot, Tier.GPU, prompt.path)
        if held == len(prompt.path):
            self.n_confirmed += 1
        elif held < prompt.confirmed or writer.n_clears != prompt.n_clears:
            self.n_withdrawn += 1
        else:
            prompt.confirmed = held
            return False
        self._forget(prompt)
        return True

    @staticmethod
    def _forget(prompt: PendingPrompt) -> None:
        prompt.assumed.forget_prompt(prompt.writer.slot, prompt.names, prompt.booked_at)
