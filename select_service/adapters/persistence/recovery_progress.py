"""Progress of reading one dump, from a peer or from the file."""

from dataclasses import dataclass, field
from time import monotonic

from indexer.dumps.compact_reader import CompactReader
from indexer.dumps.json_reader import JsonReader


@dataclass(slots=True)
class RecoveryProgress:
    """Read progress, written by the reading thread; only `is_cancelled` is set by other threads.

    source: URL or path
    begun_at: time of the request, monotonic clock, seconds
    progress_at: time of the last data received, monotonic clock, seconds
    """

    source: str
    bytes: int = 0
    partitions: int = 0
    blocks: int = 0
    is_cancelled: bool = False
    begun_at: float = field(default_factory=monotonic)
    progress_at: float = field(default_factory=monotonic)

    def add_bytes(self, size: int, loader: CompactReader | JsonReader) -> None:
        """Record that `size` more bytes went through the loader."""
        self.bytes += size
        self.partitions, self.blocks = len(loader.partitions), loader.blocks_read
        self.progress_at = monotonic()
