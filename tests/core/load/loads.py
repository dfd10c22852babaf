"""Load of one partition, booked through the ledger, as tests of the load use it."""

import numpy as np

from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.booking import Account, NewBooking
from select_service.core.load.ledger import Ledger
from select_service.core.load.moving import MoveTo
from select_service.core.load.reservations import Reservations
from select_service.core.touched import Touched


class Loads:
    def __init__(self, n_slots=2):
        self.account = Account(PartitionKey("m", "t"), 16)
        self.account.ensure_slots(n_slots)
        self.load = self.account.load
        self.ledger = Ledger(Reservations(0.0), Touched(lambda: None))

    def add(self, name, slot, hashes, tokens=0):
        hashes = np.asarray(hashes, np.uint64)
        booking = NewBooking(str(name), self.account, Rank(slot, 0), slot, hashes, 0, tokens, 0.0)
        self.ledger.book(booking, "client", 0.0)

    def remove(self, name):
        self.ledger.free(str(name), "client", 0.0)

    def output_block(self, name, fraction=None):
        self.ledger.add_output_block(str(name), fraction, 0.0)

    def complete(self, name):
        self.ledger.complete(str(name), "client", 0.0)

    def move(self, name, slot, tokens=None):
        to = MoveTo(Rank(slot, 0), slot, tokens)
        self.ledger.move(self.ledger.held.get(str(name)), to, 0.0)

    def active(self, slot=0):
        return int(self.load.active_blocks()[slot])
