"""How far one dump has been read, from a peer or from the file."""

from dataclasses import dataclass, field
from time import monotonic

from indexer.dumps.compact_load import CompactLoader
from indexer.dumps.json_load import JsonLoader


@dataclass(slots=True)
class Reading:
    """Written by the thread that reads, looked at by others; only `unwanted` goes the other way.

    source: URL or path;  begun_at, progress_at: monotonic seconds, of the first byte asked for and
    of the last one that came.
    """

    source: str
    bytes: int = 0
    partitions: int = 0
    blocks: int = 0
    unwanted: bool = False
    begun_at: float = field(default_factory=monotonic)
    progress_at: float = field(default_factory=monotonic)

    def note(self, size: int, loader: CompactLoader | JsonLoader) -> None:
        """`size` more bytes have gone through the loader."""
        self.bytes += size
        self.partitions, self.blocks = len(loader.partitions), loader.blocks_read
        self.progress_at = monotonic()
