"""What the protocol asks: the bytes of a usual request -> the bytes of its answer."""

from typing import Protocol

from select_service.http.head import Headers


class Answerer(Protocol):
    """Answers requests, one per call.

    `end` says more of the last call of `answer`, in one number, so that no call makes an object
    but its answer.
    """

    end: int

    @property
    def is_select(self) -> bool:
        """Was the last answer one of POST /select?"""

    def answer(self, data: bytes, at: int, file: int = -1) -> bytes | None:
        """The answer to the request whose first byte is `data[at]`; at < len(data).

        file: the socket of the connection where nothing waits to be sent.  An answer to all that is
        left of `data` may then be sent at once; what is returned is the rest of it.
        What is returned, and `end` afterwards:

        * bytes: the answer, or the rest of it, ready to be sent; `end` is the place in `data`
          behind the request, at < end <= len(data).  What was asked for is done.
        * None, end > len(data): a usual request as far as it has come in, which would end there.
          Nothing is done; it is asked for again when so much has come.
        * None, any other end: not usual, or not to be seen yet (the head is not complete).
          Nothing is done; the ordinary path reads the same bytes.
        """


class HeadedAnswerer(Answerer, Protocol):
    """One that is told what stands in the heads of its answers."""

    def say(self, headers: Headers) -> None:
        """Every answer begins with these from now on, before its own."""
