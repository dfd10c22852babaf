"""Priority tiers, and which of them are shed.

Tiers are ordered from the highest to the lowest.  Shedding a tier refuses it and everything below
it, whatever the load is: a plain switch, for an operator or for a controller that knows how much
capacity is left.

Source: "Priority-Based Traffic Shedding" of the fault tolerance requirements of Dynamo: a request
is accepted when its tier is above the shed one.
"""

from collections.abc import Sequence

from select_service.errors import BadRequest

SHED_RETRY_AFTER_S = 30
"""Shedding lasts until somebody ends it, so there is nothing to estimate."""


class PriorityTiers:
    """Names of tiers, highest first, and the switch."""

    def __init__(self, names: Sequence[str], default: str) -> None:
        """default: the tier of requests that name none; one of `names`."""
        assert default in names
        self.names = tuple(names)
        self.default = self.names.index(default)
        self._places = {name: place for place, name in enumerate(names)}
        self._shed_from: int | None = None
        self.changes = 0

    @property
    def shed_tier(self) -> str | None:
        """The highest tier that is shed."""
        return None if self._shed_from is None else self.names[self._shed_from]

    @property
    def shed_names(self) -> tuple[str, ...]:
        return () if self._shed_from is None else self.names[self._shed_from :]

    @property
    def shedding(self) -> bool:
        return self._shed_from is not None

    def shed(self, name: str | None) -> None:
        """Shed `name` and all below it; None accepts every tier.  Raises BadRequest."""
        self._shed_from = None if name is None else self.index_of(name)
        self.changes += 1

    def index_of(self, name: str | None) -> int:
        """Place of a request's tier, 0 the highest.  Raises BadRequest for an unknown name."""
        if name is None:
            return self.default
        place = self._places.get(name)
        if place is None:
            known = ", ".join(self.names)
            raise BadRequest(f"priority tier `{name[:64]}` is unknown; the tiers are {known}")
        return place

    def is_shed(self, index: int) -> bool:
        return self._shed_from is not None and index >= self._shed_from
