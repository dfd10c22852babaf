"""The arrays of a header of `serve_layout` that do not depend on partitions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import name_array
from select_service.fast import serve_layout as layout
from select_service.http.head import Headers
from select_service.log import shows_debug

_STATUS_LINES = {
    layout.OK: b"HTTP/1.1 200 OK\r\n",
    layout.CREATED: b"HTTP/1.1 201 Created\r\n",
}


class ServeMemory:
    """Owns the header and what belongs to it: what is read, what is written, heads of answers."""

    def __init__(self) -> None:
        self.header = np.zeros(layout.STATE_LENGTH, np.int64)
        self.sequence = np.empty(layout.HASHES_LENGTH, np.uint64)
        self.out = np.zeros(layout.OUT_BYTES, np.uint8)
        self.new_id = np.zeros(layout.ID_BYTES, np.uint8)
        self.blocks = np.empty(layout.HASHES_LENGTH, np.uint64)
        self._tokens = np.empty(layout.TOKENS_LENGTH, np.uint32)
        self._heads = np.zeros((layout.N_HEADS, layout.HEAD_BYTES), np.uint8)
        arrays: dict[int, npt.NDArray[Any]] = {
            layout.BLOCKS: self.blocks,
            layout.SEQUENCE: self.sequence,
            layout.TOKENS: self._tokens,
            layout.OUT: self.out,
            layout.HEADS: self._heads,
            layout.NEW_ID: self.new_id,
        }
        for pair, array in arrays.items():
            name_array(self.header, pair, array)
        self.header[layout.LOG : layout.LOG + 2] = shows_debug.buffer_info()
        self.say([])

    def ask_hosts(self, hosts: Sequence[bytes]) -> None:
        """Let only requests be served whose `host` is one of these; of many, of the first."""
        self._hosts = np.zeros((layout.HOSTS_MAX, layout.HOST_BYTES), np.uint8)
        self._host_lengths = np.zeros(layout.HOSTS_MAX, np.int64)
        for at, host in enumerate(each for each in hosts if len(each) <= layout.HOST_BYTES):
            if at < layout.HOSTS_MAX:
                self._hosts[at, : len(host)] = np.frombuffer(host, np.uint8)
                self._host_lengths[at] = len(host)
        name_array(self.header, layout.HOSTS, self._hosts)
        name_array(self.header, layout.HOST_LENGTHS, self._host_lengths)
        self.header[layout.ASKS_HOST] = True

    def say(self, headers: Headers) -> None:
        """Let every answer begin with these, before its own."""
        said = b"".join(b"%b: %b\r\n" % header for header in headers)
        said += b"content-length: "
        for status, line in _STATUS_LINES.items():
            head = line + said
            self._heads[status, : len(head)] = np.frombuffer(head, np.uint8)
            self.header[layout.HEAD_LENGTH + status] = len(head)
