"""The fast path's handler with a count of answered requests."""

from select_service.fastpath.service_handler import ServiceHandler


class Counting(ServiceHandler):
    """Handler with a counter.

    answered: number of requests that the fast path answered
    """

    answered = 0

    def answer_request(self, data: bytes, at: int, socket_fd: int = -1) -> bytes | None:
        found = super().answer_request(data, at, socket_fd)
        self.answered += found is not None
        return found
