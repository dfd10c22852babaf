"""Host tier of a simulated rank: blocks that left the device, the least recently used go first."""

from select_service.sim.engine.kv_block_pool import Chain


class HostCache:
    """Blocks in host memory.  places: capacity"""

    def __init__(self, places: int) -> None:
        self.places = places
        self._blocks: dict[int, None] = {}

    def store_blocks(self, blocks: Chain) -> None:
        """Store blocks that the device evicted; a stored block becomes the most recent."""
        for block in blocks.tolist():
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > self.places:
            # A dict iterates in the order of insertion.
            del self._blocks[next(iter(self._blocks))]

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)
