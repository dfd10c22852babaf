"""Tests of storage tiers by the medium of an event."""

import pytest

from indexer.tiers import Tier, tier_of_medium


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, Tier.GPU),
        ("GPU", Tier.GPU),
        ("DEVICE", Tier.GPU),
        ("CPU", Tier.CPU),
        ("CPU_PINNED", Tier.CPU),
        ("CPU_TIER1", Tier.CPU),
        ("CPU_TIER2", Tier.DISK),
        ("DISK", Tier.DISK),
        ("NVME", Tier.DISK),
        ("STORAGE", Tier.DISK),
        ("EXTERNAL", Tier.EXTERNAL),
        ("NETWORK", Tier.EXTERNAL),
        ("REMOTE", Tier.EXTERNAL),
        ("SHARED", Tier.EXTERNAL),
    ],
)
def test_a_medium_names_its_tier(medium, tier):
    assert tier_of_medium(medium) is tier


def test_the_case_of_a_medium_does_not_matter():
    assert tier_of_medium("Cpu_Pinned") is Tier.CPU


@pytest.mark.parametrize("medium", ["", "HBM", "FS", "GPU "])
def test_an_unknown_medium_has_no_tier(medium):
    assert tier_of_medium(medium) is None
