"""The bounds of connections are those of the ordinary path on a loop, too."""

import pytest

from tests.http.test_bounds import (  # noqa: F401
    test_a_body_in_many_chunks_is_one_body,
    test_a_long_body_may_come_in_small_chunks,
    test_a_request_names_one_host,
    test_http_1_0_needs_no_host,
    test_many_headers_are_refused,
    test_trailers_are_read_and_mean_nothing,
    test_trailers_have_the_room_of_a_head,
    test_what_is_around_a_body_has_an_end,
)

pytestmark = pytest.mark.process
