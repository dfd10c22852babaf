"""Tests of the pending selections against a naive twin, and their limits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement import pending_selections
from select_service.core.placement.pending_selections import (
    PendingSelection,
    PendingSelections,
    SelectionCacheLimits,
    decode_record,
    encode_key,
)
from select_service.core.placement.prompt import Prompt
from tests.builders import a_select
from tests.builders.hypothesis_profiles import explored
from tests.models.pending_selections_model import PendingEntry, PendingSelectionsModel

KEYS = [PartitionKey("m", "default"), PartitionKey("m", "g"), PartitionKey("n", "default")]
NAMES = ["a", "b", "long-identifier"]
WORD_BYTES = 96
"""Size of the fixed fields of an entry, bytes."""


def an_entry(blocks: int = 2, at: float = 0.0, **fields: Any) -> PendingSelection:
    hashes = np.arange(blocks, dtype=np.uint64)
    prompt = Prompt(hashes + np.uint64(1000), hashes, 4 * blocks)
    return PendingSelection(Rank(2**64 - 1, 3), 4, prompt, a_select(**fields), 7, 5, 1, at)


def a_record(name: str, blocks: int = 2, scope: PartitionKey = KEYS[0], **fields: Any) -> bytes:
    return an_entry(blocks, **fields).encode(encode_key(scope, name))


def find(store: PendingSelections, name: str, now: float) -> PendingSelection | None:
    return store.find(encode_key(KEYS[0], name), now)


class PendingMachine(RuleBasedStateMachine):
    """Comparison of the store with its twin."""

    @initialize(
        ttl_s=st.sampled_from([0.0, 5.0, 120.0]),
        entries_max=st.integers(0, 5),
        bytes_max=st.integers(0, 900),
    )
    def begin(self, ttl_s: float, entries_max: int, bytes_max: int) -> None:
        self.store = PendingSelections(SelectionCacheLimits(ttl_s, entries_max, bytes_max))
        self.model = PendingSelectionsModel(ttl_s, entries_max, bytes_max)
        self.now = 100.0

    @precondition(lambda self: self.store.is_on)
    @rule(
        key=st.sampled_from(KEYS),
        name=st.sampled_from(NAMES),
        blocks=st.integers(0, 40),
        lora_name=st.sampled_from([None, "l"]),
    )
    def put(self, key: PartitionKey, name: str, blocks: int, lora_name: str | None) -> None:
        record = a_record(name, blocks, key, at=self.now, lora_name=lora_name)
        size = WORD_BYTES + 16 + 16 * blocks + (17 if lora_name else 0)
        # Model, tenant and id, padded to a whole word.
        size += -(-len("".join([*key, name])) // 8) * 8
        assert size == len(record)
        self.store.put(record)
        self.model.put(PendingEntry((key, name), size, self.now, record))

    @rule(key=st.sampled_from(KEYS), name=st.sampled_from(NAMES))
    def discard(self, key: PartitionKey, name: str) -> None:
        self.store.discard(encode_key(key, name))
        self.model.discard((key, name))

    @rule(seconds=st.sampled_from([0.5, 4.5, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def drop_expired(self) -> None:
        assert not self.store.drop_expired(self.now)
        self.model.drop_expired(self.now)
        assert (len(self.store), self.store.n_bytes) == (len(self.model.kept), self.model.total)

    @invariant()
    def finds_the_same(self) -> None:
        for key in KEYS:
            for name in NAMES:
                expected = self.model.find((key, name), self.now)
                found = self.store.find(encode_key(key, name), self.now)
                assert (found is None) == (expected is None)
                if found is not None:
                    assert found.encode(encode_key(key, name)) == expected
        counts = self.store.n_oversized, self.store.n_evicted
        assert counts == (self.model.oversized, self.model.evicted)
        self.store.check_invariants()


TestPendingMachine = explored(PendingMachine)


def test_an_entry_larger_than_the_limit_removes_no_other() -> None:
    store = PendingSelections(SelectionCacheLimits(bytes_max=600))
    store.put(a_record("small"))
    store.put(a_record("large", 1000))
    assert find(store, "small", 1.0) is not None
    assert find(store, "large", 1.0) is None
    assert store.n_oversized == 1


def test_a_selection_that_is_too_large_still_ends_the_earlier_one_of_its_id() -> None:
    store = PendingSelections(SelectionCacheLimits(bytes_max=600))
    store.put(a_record("a"))
    store.put(a_record("a", 1000))
    assert find(store, "a", 1.0) is None


def test_a_step_removes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_selections, "DROPS_PER_STEP", 3)
    store = PendingSelections(SelectionCacheLimits(ttl_s=1.0, bytes_max=1000))
    for number in range(7):
        store.put(a_record(str(number), 0))
    # An entry that would evict too many others is not kept.
    store.put(a_record("large", 45))
    assert find(store, "large", 0.5) is None
    assert len(store) == 4
    assert store.drop_expired(2.0)
    assert not store.drop_expired(2.0)
    assert (len(store), store.n_bytes) == (0, 0)


def test_an_entry_comes_back_without_prompt_and_ids_of_the_request() -> None:
    asked = an_entry(
        3,
        at=12.5,
        selection_id="s",
        lora_name="l",
        expected_output_tokens=7,
        allowed_worker_ids=[1, 2**64 - 1],
        pinned_worker={"worker_id": 2, "dp_rank": 1},
        routing_constraints={"required_taints": ["t"]},
        router_config_override={"track_prefill_tokens": False},
        strict_priority=3,
    )
    found = decode_record(asked.encode(encode_key(KEYS[0], "s")))
    assert found._replace(prompt=asked.prompt, request=asked.request) == asked
    assert found.prompt.isl_tokens == 12
    assert found.prompt.sequence_hashes.tolist() == [0, 1, 2]
    assert found.prompt.block_hashes.tolist() == [1000, 1001, 1002]
    told, request = asked.request, found.request
    assert (request.lora_name, request.expected_output_tokens) == ("l", 7)
    assert request.allowed_worker_ids == told.allowed_worker_ids
    assert request.pinned_worker == told.pinned_worker
    assert request.routing_constraints == told.routing_constraints
    assert request.router_config_override == told.router_config_override
    assert request.strict_priority == 3
    assert (request.token_ids, request.selection_id) == (None, None)


def test_keys_of_different_scopes_and_ids_differ() -> None:
    texts = ["", "a", "aa", "\ud800", "ä"]
    keys = {encode_key(PartitionKey(m, t), n) for m in texts for t in texts for n in texts}
    assert len(keys) == len(texts) ** 3
