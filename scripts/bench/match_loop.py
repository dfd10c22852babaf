"""A match, again and again, without Python in between."""

# mypy: ignore-errors

from indexer.compiled import compiled
from indexer.index.match_kernels import match
from indexer.index.state_kernels import HEADER


@compiled(f"int64({HEADER}, uint64[:, ::1], int32[:, ::1], int64)")
def match_many(header, paths, matched, count):
    """The paths in turns; returns the sum of what the first slot has, so that all of it is done."""
    total = 0
    for i in range(count):
        match(header, paths[i % paths.shape[0]], matched)
        total += matched[0, 0]
    return total
