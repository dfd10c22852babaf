"""Simple answerers for tests of the protocol, with clear rules about answered requests."""

import re
from collections.abc import Callable

from select_service.http.request_head import Headers

HEAD = re.compile(
    rb"(?:GET (/\d*[02468])|POST (/\d*[02468])) HTTP/1\.1\r\nhost: x\r\n"
    rb"(?:content-length: (\d{1,7})\r\n)?\r\n"
)
FLOAT = b"1.5"
"""Mark of an unusual body, which shows only at the end of the body."""


class EvenAnswerer:
    """Answers GET and POST of even numbers as the application of a `Conversation` does.

    is_open: function that returns whether requests may be answered at once
    asked: function that receives path and body
    n_answered, n_called: number of answers and of calls
    """

    def __init__(
        self, is_open: Callable[[], bool], asked: Callable[[tuple[str, bytes]], None]
    ) -> None:
        self._is_open, self._asked = is_open, asked
        self.end = self.n_answered = self.n_called = 0

    def set_common_headers(self, headers: Headers) -> None:
        """Ignore the headers; a conversation has no date."""

    def answer_request(self, data: bytes, at: int, socket_fd: int = -1) -> bytes | None:
        self.n_called += 1
        self.end = -1
        head = HEAD.match(data, at)
        if head is None or not self._is_open():
            return None
        end = head.end() + int(head[3] or 0)
        body = data[head.end() : end]
        if end <= len(data) and FLOAT in body:
            return None
        self.end = end
        if end > len(data):
            return None
        self.n_answered += 1
        path = head[1] or head[2]
        self._asked((path.decode(), body))
        text = path + b" " + body
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text)


class FixedAnswerer:
    """Answerer with fixed answers.

    answers: request -> answer
    """

    def __init__(self) -> None:
        self.answers: dict[bytes, bytes] = {}
        self.end = 0
        self.headers: list[Headers] = []

    def set_common_headers(self, headers: Headers) -> None:
        self.headers.append(headers)

    def answer_request(self, data: bytes, at: int, socket_fd: int = -1) -> bytes | None:
        for request, answer in self.answers.items():
            if data.startswith(request, at):
                self.end = at + len(request)
                return answer
            if b"\r\n\r\n" in data[at:] and request.startswith(data[at:]):
                self.end = at + len(request)
                return None
        self.end = 0
        return None
