"""How many ranks and outbound connections fit under a limit of open files."""

import pytest

from indexer.sockets.descriptors import (
    ASKING_FILES_MIN,
    HTTP_FILES,
    OWN_FILES,
    RANK_FILES,
    Room,
    room_of,
)


@pytest.mark.parametrize(
    ("limit", "room"),
    [
        (64, Room(0, ASKING_FILES_MIN)),
        (256, Room(16, 14)),
        (1024, Room(128, 110)),
        (1_048_576, Room(173_373, 8192)),
    ],
)
def test_what_http_and_the_process_itself_need_is_kept(limit, room):
    assert room_of(limit, 30) == room
    taken = room.ranks * RANK_FILES + room.asking + OWN_FILES + HTTP_FILES + 30
    assert limit < 142 or taken <= limit
