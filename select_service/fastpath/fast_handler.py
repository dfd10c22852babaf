"""Interface between the protocol and a handler of common requests, from bytes to bytes."""

from typing import Protocol

from select_service.http.request_head import Headers


class FastHandler(Protocol):
    """Handler of requests, one per call.

    `end` holds further results of the last call of `answer_request` in one number, so that a call
    creates no object other than the response.
    """

    end: int

    def answer_request(self, data: bytes, at: int, socket_fd: int = -1) -> bytes | None:
        """Return the response to the request that begins at `data[at]`; at < len(data).

        socket_fd: socket of the connection if no output is pending.  A response to all the rest of
        `data` may then be sent directly; the return value is the unsent rest.
        The result, and `end` afterwards:

        * bytes: the response, or its rest, ready to be sent; `end` is the offset in `data`
          after the request, at < end <= len(data).  The request has been carried out.
        * None, end > len(data): an incomplete common request that would end there.
          Nothing has changed; call again when that many bytes have arrived.
        * None, any other end: not a common request, or undecided (the head is incomplete).
          Nothing has changed; the ordinary path reads the same bytes.
        """


class FastHandlerWithHeaders(FastHandler, Protocol):
    """Handler with configurable response headers."""

    def set_common_headers(self, headers: Headers) -> None:
        """Set the headers that every response begins with from now on."""
