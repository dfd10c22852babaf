"""Tests of the numbers of ranks and outbound connections under a limit of open files."""

import pytest

from indexer.sockets.file_descriptors import (
    HTTP_FILES,
    OUTGOING_FILES_MIN,
    OWN_FILES,
    RANK_FILES,
    DescriptorLimits,
    limits_for,
)


@pytest.mark.parametrize(
    ("limit", "room"),
    [
        (64, DescriptorLimits(0, OUTGOING_FILES_MIN)),
        (256, DescriptorLimits(16, 14)),
        (1024, DescriptorLimits(128, 110)),
        (1_048_576, DescriptorLimits(173_373, 8192)),
    ],
)
def test_files_for_http_and_the_process_are_reserved(limit, room):
    assert limits_for(limit, 30) == room
    taken = room.ranks * RANK_FILES + room.outgoing_http + OWN_FILES + HTTP_FILES + 30
    assert limit < 142 or taken <= limit
