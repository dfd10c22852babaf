"""Storage tiers of a KV block, and the medium names engines use for them.

Only the names and their order live here: the order is the order in which a match continues.
"""

from enum import IntEnum


class Tier(IntEnum):
    """Where a block lies; the value is the plane of a holder set and the column of a match."""

    GPU = 0
    CPU = 1
    DISK = 2
    EXTERNAL = 3


N_TIERS = len(Tier)

_TIER_OF_MEDIUM = {
    "GPU": Tier.GPU,
    "DEVICE": Tier.GPU,
    "CPU": Tier.CPU,
    "CPU_PINNED": Tier.CPU,
    "CPU_TIER1": Tier.CPU,
    "CPU_TIER2": Tier.DISK,
    "DISK": Tier.DISK,
    "NVME": Tier.DISK,
    "STORAGE": Tier.DISK,
    "EXTERNAL": Tier.EXTERNAL,
    "NETWORK": Tier.EXTERNAL,
    "REMOTE": Tier.EXTERNAL,
    "SHARED": Tier.EXTERNAL,
}


def tier_of_medium(medium: str | None) -> Tier | None:
    """Tier of an event's medium in any letter case; no medium means GPU, an unknown one None.

    An event of unknown medium must be dropped: taking it for GPU would promise hits that are
    not there.
    """
    return Tier.GPU if medium is None else _TIER_OF_MEDIUM.get(medium.upper())
