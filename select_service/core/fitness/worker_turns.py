"""What is to be done about whole workers: their ranks are looked at, a few in each turn."""

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Wish(NamedTuple):
    """What is to be done about one.

    changed: it was put or deleted;  is_registration: it was registered anew
    drains:  it gets nothing new; False: it serves again; None: neither
    """

    changed: bool = False
    is_registration: bool = False
    drains: bool | None = None


_NO_WISH = Wish()


class WorkerTurns:
    """Workers in the order in which something was first wished for them, one wish for each."""

    def __init__(self, carried_out: Callable[[int, Wish], Iterator[int]]) -> None:
        """carried_out: does it; yields after some ranks how many they were"""
        self._carried_out = carried_out
        self._wishes: dict[int, Wish] = {}
        self._in_hand: tuple[int, Iterator[int]] | None = None

    def __len__(self) -> int:
        """Workers about which something is to be done."""
        return len(self._wishes) + (self._in_hand is not None)

    def is_behind(self, worker_id: int) -> bool:
        """Is something to be done about this one?"""
        in_hand = self._in_hand is not None and self._in_hand[0] == worker_id
        return in_hand or worker_id in self._wishes

    def changed(self, worker_id: int, is_registration: bool) -> None:
        """A worker was put or deleted.  As it is registered now, it does not drain."""
        old = self._wishes.get(worker_id, _NO_WISH)
        drains = None if is_registration else old.drains
        self._wishes[worker_id] = Wish(True, old.is_registration or is_registration, drains)

    def drains(self, worker_id: int, drains: bool) -> None:
        """It is to get nothing new from now on, or to serve again."""
        old = self._wishes.get(worker_id, _NO_WISH)
        self._wishes[worker_id] = old._replace(drains=drains)

    def go_on(self, ranks_max: int) -> None:
        """Look at so many ranks, and the rest of the step; a worker of none counts as one."""
        while ranks_max > 0 and len(self):
            if self._in_hand is None:
                worker_id = next(iter(self._wishes))
                wish = self._wishes.pop(worker_id)
                self._in_hand = worker_id, self._carried_out(worker_id, wish)
            n_ranks = next(self._in_hand[1], None)
            if n_ranks is None:
                self._in_hand = None
            ranks_max -= n_ranks or 1
