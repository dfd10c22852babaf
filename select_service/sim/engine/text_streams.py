"""Growing texts as chains of blocks with shared beginnings, for generated workloads."""

import numpy as np

from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS
from select_service.sim.engine.kv_block_pool import Chain

EMPTY_CHAIN: Chain = np.empty(0, np.int32)


def without_pauses(workload: ReplayWorkload) -> ReplayWorkload:
    """Return the workload without pauses between the turns of a session."""
    sessions = tuple(
        tuple(turn._replace(think_s=0.0) for turn in session) for session in workload.sessions
    )
    return workload._replace(sessions=sessions)


class BlockNumbers:
    """Numbers of blocks: a distinct number for every content behind every beginning."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self.count = 0
        self.block_tokens = block_tokens
        self._shared: dict[tuple[int, object], Chain] = {}

    def new_blocks(self, n: int) -> Chain:
        """Return new blocks."""
        self.count += n
        return np.arange(self.count - n, self.count, dtype=np.int32)

    def shared_blocks(self, behind: int, label: object, n: int) -> Chain:
        """Return the blocks of a text behind a block (-1: at the begin), the same in every call."""
        key = behind, label
        if key not in self._shared:
            self._shared[key] = self.new_blocks(n)
        assert len(self._shared[key]) == n
        return self._shared[key]


class TextStream:
    """A growing text and its blocks."""

    def __init__(self, blocks: BlockNumbers) -> None:
        self.tokens = 0
        self._blocks, self._size = blocks, blocks.block_tokens
        self._chain = EMPTY_CHAIN

    def append_unique(self, tokens: int) -> "TextStream":
        """Append unique text."""
        self.tokens += tokens
        return self

    def append_shared(self, label: object, tokens: int) -> "TextStream":
        """Append shared text in whole blocks, because text inside a block is not shared."""
        # Text that begins inside a block never gives equal blocks.
        assert self.tokens % self._size == tokens % self._size == 0
        chain = self.full_blocks()
        behind = int(chain[-1]) if len(chain) else -1
        more = self._blocks.shared_blocks(behind, label, tokens // self._size)
        self._chain = np.concatenate([chain, more])
        self.tokens += tokens
        return self

    def shorten_to(self, tokens: int) -> "TextStream":
        """Shorten the text to `tokens`; later text starts a new continuation."""
        self.tokens = min(self.tokens, tokens)
        self._chain = self._chain[: self.tokens // self._size]
        return self

    def full_blocks(self) -> Chain:
        """Return the full blocks."""
        missing = self.tokens // self._size - len(self._chain)
        if missing > 0:
            self._chain = np.concatenate([self._chain, self._blocks.new_blocks(missing)])
        return self._chain

    def make_request(self, output_tokens: int, think_s: float = 0.0) -> ReplayRequest:
        """Return a request with the whole text as its prompt; the answer is appended."""
        prompt_tokens = self.tokens
        self.append_unique(output_tokens)
        return ReplayRequest(self.full_blocks(), prompt_tokens, output_tokens, think_s)
