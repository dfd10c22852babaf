"""A service whose connections begin on input loops, on a thread of this process."""

from collections.abc import Mapping
from typing import Any
from unittest import mock

from select_service.core.selector import Selector
from select_service.fast.request_layout import SELECT as SELECT_ROUTE
from select_service.fast.serve_layout import ANSWERS
from select_service.loops import loop_layout as layout
from select_service.loops import loops as loops_module
from select_service.loops.loop import Limits
from select_service.loops.loops import Loops, Served
from tests.builders import worker_body
from tests.patience import PATIENCE_S
from tests.process.in_thread import InThread
from tests.process.running import Client, request

PROMPT = {"model_name": "m", "token_ids": [1, 2, 3, 4, 5]}
SELECT = request("POST", "/select", PROMPT)
HEALTH = request("GET", "/health")


PATIENT = Limits(parked_s=PATIENCE_S)
"""On a busy machine Python may be slow to answer a question."""


class OnLoops(InThread):
    """`made`: its loops;  `selector`: its core."""

    made: Loops
    selector: Selector

    def __init__(
        self,
        *flags: str,
        loops: int = 1,
        limits: Limits = PATIENT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        own = limits

        def make(*given: Any, limits: Limits) -> Loops:
            self.selector = given[2]
            self.made = Loops(*given, limits=own._replace(idle_s=min(own.idle_s, limits.idle_s)))
            return self.made

        self._patched = mock.patch.object(loops_module, "Loops", make)
        self._patched.start()
        super().__init__("--input-loops", str(loops), *flags, environment=environment)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patched.stop()

    @property
    def served(self) -> list[Served]:
        return self.made._served

    def counted(self, counter: int) -> int:
        """Of all loops.  counter: of loop_layout"""
        return sum(int(served.loop.counters[counter]) for served in self.served)

    def answered(self) -> int:
        """Requests that the loops have answered themselves."""
        counts = [served.publishing._counts._counts for served in self.served]
        return sum(int(each[SELECT_ROUTE, ANSWERS]) for each in counts)

    @property
    def n_handed(self) -> int:
        return sum(self.counted(why) for why in range(layout.N_WHY))

    @property
    def n_connections(self) -> int:
        return sum(int(served.loop.header[layout.N_CONNECTIONS]) for served in self.served)

    @property
    def connections(self) -> list[Any]:
        """All that are open, wherever they are."""
        return [*self.rows(), *self._servers[0].server_state.connections]

    def client(self) -> Client:
        return Client(self.port)

    def post(self, path: str, body: Any) -> Any:
        with self.client() as client:
            client.send(request("POST", path, body))
            return client.answer()

    def with_workers(self, n: int = 2) -> None:
        for number in range(1, n + 1):
            assert self.post("/workers", worker_body(number)).status == 201

    def is_alive(self) -> bool:
        """Does a new client get what it asks for?"""
        with self.client() as client:
            client.send(SELECT)
            return client.answer().status == 200

    def rows(self) -> list[list[int]]:
        """Connections that the loops have, see loop_layout."""
        tables = [served.loop.connections.reshape(-1, layout.ROW_LENGTH) for served in self.served]
        return [row for table in tables for row in table.tolist() if row[layout.FD] > 0]

    def held(self) -> int:
        """Bytes that have come in and are not answered."""
        return sum(row[layout.HELD] for row in self.rows())
