"""Planes of a holder set, for Python: equal to the functions of the same names for kernels."""

from indexer.tiers import N_TIERS


def held_plane(tier: int) -> int:
    """Return the plane with the bits of the slots that hold a block in a tier or lane."""
    return tier if tier < N_TIERS else 2 * tier


def irregular_plane(tier: int) -> int:
    """Return the plane that marks the irregular holders of a tier or lane."""
    return tier + N_TIERS if tier < N_TIERS else 2 * tier + 1
