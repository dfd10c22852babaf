"""Load of one partition, booked through the ledger, for tests of active load."""

import numpy as np

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.ledger import Ledger
from select_service.core.load.new_reservation import LoadAccount, NewReservation
from select_service.core.load.reservation_move import MoveTarget
from select_service.core.load.reservations import Reservations


class Loads:
    def __init__(self, n_slots=2):
        self.account = LoadAccount(PartitionKey("m", "t"), 16)
        self.account.ensure_slots(n_slots)
        self.load = self.account.load
        self.ledger = Ledger(Reservations(0.0), DirtyPartitions(lambda: None))

    def add(self, name, slot, hashes, tokens=0):
        hashes = np.asarray(hashes, np.uint64)
        booking = NewReservation(
            str(name), self.account, Rank(slot, 0), slot, hashes, 0, tokens, 0.0
        )
        self.ledger.book(booking, "client", 0.0)

    def remove(self, name):
        self.ledger.free_by_id(str(name), "client", 0.0)

    def output_block(self, name, fraction=None):
        self.ledger.add_output_block(str(name), fraction, 0.0)

    def complete(self, name):
        self.ledger.complete_by_id(str(name), "client", 0.0)

    def move(self, name, slot, tokens=None):
        to = MoveTarget(Rank(slot, 0), slot, tokens)
        self.ledger.move(self.ledger.reservations.get_reservation(str(name)), to, 0.0)

    def active(self, slot=0):
        return int(self.load.compute_active_blocks()[slot])
