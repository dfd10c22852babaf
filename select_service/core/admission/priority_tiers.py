"""Priority tiers and the shed tier.

Tiers are ordered from the highest to the lowest.  Shedding a tier refuses this tier and all lower
tiers at any load.  The switch is meant for operators, or for a controller that knows the remaining
capacity.

Source: "Priority-Based Traffic Shedding" of the fault tolerance requirements of Dynamo: a request
is accepted when its tier is above the shed tier.
"""

from collections.abc import Sequence

from select_service.base.errors import BadRequest

SHED_RETRY_AFTER_S = 30
"""Retry-After of shed tiers, seconds; a fixed number, as an operator ends the shedding."""


class PriorityTiers:
    """Names of the tiers, highest first, and the shed tier."""

    def __init__(self, names: Sequence[str], default: str) -> None:
        """Build the tiers.

        default: tier of requests that name none, among `names`
        """
        assert default in names
        self.names = tuple(names)
        self.default = self.names.index(default)
        self._indexes = {name: place for place, name in enumerate(names)}
        self._shed_from: int | None = None
        self.changes = 0

    @property
    def shed_tier(self) -> str | None:
        """Highest shed tier."""
        return None if self._shed_from is None else self.names[self._shed_from]

    @property
    def shed_names(self) -> tuple[str, ...]:
        return () if self._shed_from is None else self.names[self._shed_from :]

    @property
    def is_shedding(self) -> bool:
        return self._shed_from is not None

    def set_shed_tier(self, name: str | None) -> None:
        """Shed `name` and all lower tiers; None accepts every tier.  Raises BadRequest."""
        self._shed_from = None if name is None else self.index_of(name)
        self.changes += 1

    def index_of(self, name: str | None) -> int:
        """Return the index of a request's tier, 0 for the highest.  Raises BadRequest for an
        unknown name.
        """
        if name is None:
            return self.default
        place = self._indexes.get(name)
        if place is None:
            tier_names = ", ".join(self.names)
            # The name comes from a client and may be long, hence the cut.
            raise BadRequest(f"priority tier `{name[:64]}` is unknown; the tiers are {tier_names}")
        return place

    def is_shed(self, index: int) -> bool:
        return self._shed_from is not None and index >= self._shed_from
