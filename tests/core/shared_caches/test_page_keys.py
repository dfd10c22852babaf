"""Tests of page keys: numbers of other implementations, and limits."""

from select_service.core.shared_caches.page_keys import PAGES_MAX, hash_pages
from select_service.core.shared_caches.prefix_memory import PREFIXES_MAX, PrefixMemory


def test_the_names_are_those_of_sglang_and_dynamo():
    """Check the test vectors of Dynamo's kv_router/shared_cache/hicache.rs."""
    plain = hash_pages(list(range(1, 11)), 4, is_eagle=False)
    assert [name.hex() for name in plain] == [
        "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
        "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6",
    ]
    eagle = hash_pages(list(range(10, 15)), 2, is_eagle=True)
    assert [name.hex() for name in eagle] == [
        "4bde82677ba8b6de843da1713b58a439678ec01b642bbdcffec4acfa81b0ec8e",
        "75ab93a767bad1e254945d1a0ccfa1588d6ebb803303e412d984baedcbbf04b9",
    ]


def test_short_and_long_prompts():
    assert hash_pages([], 4, is_eagle=False) == hash_pages([], 4, is_eagle=True) == []
    assert hash_pages([1, 2, 3], 4, is_eagle=False) == []
    assert len(hash_pages([1] * 5 * PAGES_MAX, 4, is_eagle=False)) == PAGES_MAX
    assert len(hash_pages([1] * (4 * PAGES_MAX + 1), 4, is_eagle=True)) == PAGES_MAX


def test_the_memory_is_bounded_and_forgets():
    memory = PrefixMemory[int]()
    for n in range(PREFIXES_MAX + 10):
        memory.put(n.to_bytes(4, "big"), n, 0.0)
    assert len(memory) == PREFIXES_MAX
    newest = (PREFIXES_MAX + 9).to_bytes(4, "big")
    assert memory.find((0).to_bytes(4, "big"), 0.0) is None
    assert memory.find(newest, 1.9) == PREFIXES_MAX + 9
    assert memory.find(newest, 2.0) is None
