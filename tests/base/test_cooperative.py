"""Tests that long answers leave the event loop to other tasks."""

import asyncio

import msgspec

from select_service.base import cooperative
from select_service.base.cooperative import collect_cooperatively, encode_cooperatively


async def test_others_are_served_between_the_rows_of_a_long_answer(monkeypatch):
    monkeypatch.setattr(cooperative, "SLICE_S", 0.0)
    served_at = []

    async def other(made):
        while len(made) < 5:
            served_at.append(len(made))
            await asyncio.sleep(0)

    made = []

    def rows():
        for number in range(5):
            made.append(number)
            yield number

    found, _ = await asyncio.gather(collect_cooperatively(rows()), other(made))
    assert found == [0, 1, 2, 3, 4]
    assert served_at == [1, 2, 3, 4]


def test_rows_encoded_one_by_one_make_the_same_document():
    rows = [{"a": 1}, [2, None], "x"]
    encoded = asyncio.run(encode_cooperatively(iter(rows)))
    assert msgspec.json.encode(encoded) == msgspec.json.encode(rows)
