"""Cooperative generation of long results, in slices of event loop time."""

import asyncio
from collections.abc import Generator, Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

SLICE_S = 0.002
"""Maximum duration of a slice, in seconds; a single row may take longer."""

_encode = msgspec.json.Encoder().encode


async def collect_cooperatively(rows: Iterable[T | None]) -> list[T]:
    """Return all rows, generated one by one; each row has the state of its moment.

    None in `rows` is no row: it marks a point where other work may run before the row is complete.
    """
    found = []
    until = perf_counter() + SLICE_S
    for row in rows:
        if row is not None:
            found.append(row)
        # The time is checked per row: rows differ in cost by orders of magnitude.
        if perf_counter() > until:
            await asyncio.sleep(0)
            until = perf_counter() + SLICE_S
    return found


async def encode_cooperatively(rows: Iterable[Any]) -> list[msgspec.Raw]:
    """Return every row as JSON, generated like `collect_cooperatively`."""
    return await collect_cooperatively(
        None if row is None else msgspec.Raw(_encode(row)) for row in rows
    )


async def run_cooperatively(steps: Generator[None, None, T]) -> T:
    """Return the result of a generator, run in slices of its steps."""
    result: list[T] = []

    def outcome() -> Iterator[None]:
        result.append((yield from steps))

    await collect_cooperatively(outcome())
    return result[0]
