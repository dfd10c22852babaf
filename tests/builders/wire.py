"""A transport without a socket."""

import asyncio
from typing import Any


class Wire(asyncio.Transport):
    """Transport that records the calls of the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.mark_closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.mark_closed = True

    def abort(self) -> None:
        self.mark_closed = True

    def is_closing(self) -> bool:
        return self.mark_closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0
