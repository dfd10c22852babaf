"""One download of a peer's dump, on a thread of its own that nothing waits for.

A peer may stall, lie or never end: every wait has a time limit, what is read goes straight into a
loader that bounds it, and whoever started the download may end it at any moment.
"""

import contextlib
import http.client
import socket
import threading
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from indexer.dumps.compact_dump import MEDIA_TYPE
from indexer.dumps.compact_load import CompactLoader, DumpError, LoadLimits
from indexer.dumps.held_blocks import DumpedPartition
from indexer.dumps.json_load import JsonLoader
from indexer.dumps.moment import heard_by_peer
from select_service.edge.keeping.reading import Reading

ANSWER_S_MAX = 30.0
"""For the head of the answer: the reference writes all of a large dump before it sends any."""
SILENCE_S_MAX = 5.0
"""Without a byte of the body for so long, a peer is given up."""
BODY_BYTES_MAX = 16 << 30
READ_BYTES = 1 << 18
ERROR_CHARS_MAX = 200
UNUSABLE = (ValueError, MemoryError)
"""What the libraries raise for a name that cannot be encoded, and when a dump is too much."""
ACCEPT = f"{MEDIA_TYPE}, application/json;q=0.5"


class Answer(NamedTuple):
    """A dump that was read to its end."""

    reading: Reading
    form: Literal["compact", "json"]
    partitions: list[DumpedPartition]
    bad_entries: int

    @property
    def blocks(self) -> int:
        return sum(partition.blocks for partition in self.partitions)


class Download(threading.Thread):
    """`answer` or `error` is there once the thread has ended."""

    def __init__(self, url: str, limits: LoadLimits) -> None:
        super().__init__(name=f"recovery {url}", daemon=True)
        self.url = url
        self.answer: Answer | None = None
        self.error = "the download broke off"
        self.reading = Reading(url)
        self._limits = limits
        self._socket: socket.socket | None = None

    def cancel(self) -> None:
        """End it soon, whatever it waits for; what it has read is forgotten."""
        self.reading.unwanted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        try:
            self.answer = self._read()
        except (OSError, http.client.HTTPException, DumpError, *UNUSABLE) as error:
            self.error = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]

    def _read(self) -> Answer:
        """Raises OSError, HTTPException, DumpError, UNUSABLE."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(
            parts.hostname, parts.port or 80, timeout=ANSWER_S_MAX
        )
        with contextlib.closing(connection):
            connection.connect()
            self._socket = connection.sock
            self._refuse_if_cancelled()
            headers = {"accept": ACCEPT, "connection": "close"}
            connection.request("GET", parts.path.rstrip("/") + "/dump", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise DumpError(f"status {response.status}")
            self._socket.settimeout(SILENCE_S_MAX)
            return self._load(response)

    def _load(self, response: http.client.HTTPResponse) -> Answer:
        is_compact = (response.getheader("content-type") or "").startswith(MEDIA_TYPE)
        loader: CompactLoader | JsonLoader
        if is_compact:
            loader = CompactLoader(self._limits, heard_by_peer)
        else:
            loader = JsonLoader(self._limits)
        while data := response.read1(READ_BYTES):
            self._refuse_if_cancelled()
            loader.feed(data)
            self.reading.note(len(data), loader)
            if self.reading.bytes > BODY_BYTES_MAX:
                raise DumpError(f"more than {BODY_BYTES_MAX} bytes")
        loader.finish()
        form: Literal["compact", "json"] = "compact" if is_compact else "json"
        return Answer(self.reading, form, loader.partitions, loader.bad_entries)

    def _refuse_if_cancelled(self) -> None:
        if self.reading.unwanted:
            raise DumpError("it took too long")
