"""Tests of the naive cache model against recordings of engines."""

import pytest

from tests.indexer.events.test_recorded_groups import LAYOUTS, rows_of
from tests.indexer.events.test_recorded_versions import BY_RULE
from tests.models.recorded_cache import RecordedCache

OTHER_RULE = {
    "vllm-0.33.0/drop_and_finer_window",
    "vllm-0.33.0/drop_deepseek_v4",
    "vllm-0.33.0/full_and_state_context_parallel_2",
}
"""Recordings under a rule that the naive cache lacks."""
OTHER_NAMES = {
    name for name in BY_RULE if "adapters" in name or ("0.23" in name and "salt" in name)
}
"""Recordings with names that cover an adapter's path, or a salt in an older form.
"""


@pytest.mark.parametrize("recording", sorted({*LAYOUTS, *BY_RULE} - OTHER_RULE - OTHER_NAMES))
def test_the_naive_cache_is_the_engines_own(recording):
    rows = rows_of(recording)
    cache = RecordedCache(next(rows))
    for row in rows:
        if "batch" in row:
            cache.apply(row["batch"][1])
        else:
            assert cache.reusable(row["tokens"], row.get("salt")) == row["reused"]
