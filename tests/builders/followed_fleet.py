"""A selector that follows a source of workers; tests call the event loop's part by hand."""

from select_service.adapters.discovery.apply_changes import ChangeApplier
from select_service.core.registry.discovery.fleet_snapshot import FleetSnapshot
from select_service.core.registry.discovery.reconciler import Reconciler
from tests.builders import a_selector

DRAIN_S = 60.0


class FollowedFleet:
    def __init__(self, selector=None):
        self.selector = a_selector() if selector is None else selector
        self.standing = FleetSnapshot(self.selector.fleet)
        self.following = Reconciler(["a"], self.standing, DRAIN_S)
        self.told = 0
        self.carrying = ChangeApplier(self.following, self.selector, self._tell)
        self.now = 0.0

    def _tell(self):
        self.told += 1

    def offer(self, *workers):
        self.following.set_desired("a", {each.worker_id: each for each in workers})
        self.run()

    def run(self, after=1.0):
        """Advance the time and run steps until no work is left."""
        self.now += after
        while self.carrying.apply_step(self.now):
            pass

    def is_current(self):
        catalog = self.selector.fleet.catalog
        return {w.worker_id: w for w in catalog if w.worker_id not in catalog.deleted_workers()}
