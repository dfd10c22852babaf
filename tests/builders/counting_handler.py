"""The fast path's handler, with a count of what it answered."""

from select_service.fastpath.service_handler import ServiceHandler


class Counting(ServiceHandler):
    """`answered`: how many requests were answered by it."""

    answered = 0

    def answer_request(self, data: bytes, at: int, socket_fd: int = -1) -> bytes | None:
        found = super().answer_request(data, at, socket_fd)
        self.answered += found is not None
        return found
