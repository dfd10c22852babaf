"""How many ranks fit under a limit of open files."""

import pytest

from indexer.sockets.descriptors import HTTP_FILES, OWN_FILES, RANK_FILES, ranks_of


@pytest.mark.parametrize(("limit", "ranks"), [(64, 0), (1024, 147), (1_048_576, 174_739)])
def test_what_http_and_the_process_itself_need_is_kept(limit, ranks):
    assert ranks_of(limit, 30) == ranks
    assert limit < 142 or ranks * RANK_FILES + OWN_FILES + HTTP_FILES + 30 <= limit
