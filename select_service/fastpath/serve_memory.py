"""Arrays of a `serve_layout` header that do not depend on partitions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from select_service.base.log_format import shows_debug
from select_service.core.array_types import store_pointer
from select_service.fastpath import serve_layout as layout
from select_service.fastpath.parsing.request_layout import (
    N_FIELDS,
    NONE,
    SAME_HEAD_BYTES_MAX,
)
from select_service.http.request_head import Headers

_STATUS_LINES = {layout.OK: b"HTTP/1.1 200 OK\r\n", layout.CREATED: b"HTTP/1.1 201 Created\r\n"}


class ServeMemory:
    """Owner of the header and its arrays: parser output, response buffer, response heads."""

    def __init__(self) -> None:
        self.header = np.zeros(layout.STATE_LENGTH, np.int64)
        self.sequence = np.empty(layout.HASHES_LENGTH, np.uint64)
        self.out = np.zeros(layout.OUT_BYTES, np.uint8)
        self.new_id = np.zeros(layout.ID_BYTES, np.uint8)
        self.blocks = np.empty(layout.HASHES_LENGTH, np.uint64)
        self.tokens = np.empty(layout.TOKENS_LENGTH, np.uint32)
        self.selection = np.zeros(layout.SELECTION_LENGTH, np.int64)
        self._pin_mask = np.zeros(layout.PIN_SLOTS_MAX, np.bool_)
        self._same_head = np.zeros(SAME_HEAD_BYTES_MAX, np.uint8)
        self._head_fields = np.full(N_FIELDS, NONE, np.int64)
        self._heads = np.zeros((layout.N_HEADS, layout.HEAD_BYTES), np.uint8)
        arrays: dict[int, npt.NDArray[Any]] = {
            layout.BLOCKS: self.blocks,
            layout.SEQUENCE: self.sequence,
            layout.TOKENS: self.tokens,
            layout.OUT: self.out,
            layout.HEADS: self._heads,
            layout.NEW_ID: self.new_id,
            layout.SELECTION: self.selection,
            layout.SELECTION_TEXT: self.selection.view(np.uint8),
            layout.PIN_MASK: self._pin_mask,
            layout.SAME_HEAD: self._same_head,
            layout.HEAD_FIELDS: self._head_fields,
        }
        for pair, array in arrays.items():
            store_pointer(self.header, pair, array)
        # The kernel reads the log level by its address, so that PUT /log_level acts at once.
        self.header[layout.LOG : layout.LOG + 2] = shows_debug.buffer_info()
        self.set_common_headers([])

    def restrict_hosts(self, hosts: Sequence[bytes]) -> None:
        """Accept only requests for a `host` in the list, up to HOSTS_MAX hosts."""
        self._hosts = np.zeros((layout.HOSTS_MAX, layout.HOST_BYTES), np.uint8)
        self._host_lengths = np.zeros(layout.HOSTS_MAX, np.int64)
        for at, host in enumerate(each for each in hosts if len(each) <= layout.HOST_BYTES):
            if at < layout.HOSTS_MAX:
                self._hosts[at, : len(host)] = np.frombuffer(host, np.uint8)
                self._host_lengths[at] = len(host)
        store_pointer(self.header, layout.HOSTS, self._hosts)
        store_pointer(self.header, layout.HOST_LENGTHS, self._host_lengths)
        self.header[layout.CHECKS_HOST] = True

    def set_new_id(self, name: str) -> None:
        """Set the generated id of a reservation."""
        self.new_id[:] = np.frombuffer(name.encode(), np.uint8)

    def set_common_headers(self, headers: Headers) -> None:
        """Set the headers that every response begins with."""
        text = b"".join(b"%b: %b\r\n" % header for header in headers)
        text += b"content-length: "
        for status, line in _STATUS_LINES.items():
            head = line + text
            self._heads[status, : len(head)] = np.frombuffer(head, np.uint8)
            self.header[layout.HEAD_LENGTH + status] = len(head)
