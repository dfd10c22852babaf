"""A connection with a client that reads on demand."""

from typing import Any

from tests.builders.wire import Wire

HIGH_WATER = 200


class SlowWire(Wire):
    """Wire that buffers writes and notifies the protocol above HIGH_WATER and when empty again.

    most: largest number of unsent bytes
    """

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.unsent, self.most = b"", 0
        self.is_reading, self.told = True, False

    def write(self, data: Any) -> None:
        if self.is_reading and not self.unsent:
            self.written += bytes(data)
            return
        self.unsent += bytes(data)
        self.most = max(self.most, len(self.unsent))
        if len(self.unsent) > HIGH_WATER and not self.told:
            self.told = True
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def take(self) -> None:
        """Read all available data as the client."""
        self.written += self.unsent
        self.unsent = b""
        if self.told:
            self.told = False
            self.protocol.resume_writing()
