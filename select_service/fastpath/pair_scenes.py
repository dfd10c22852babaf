"""Partitions as the kernel of pairs reads them."""

from random import Random, SystemRandom
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from select_service.core.array_types import store_pointer
from select_service.core.pairs.handoff import (
    make_handoff_of,
    minter_of,
    names_decode_worker,
)
from select_service.core.pairs.pair_links import LinkState
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.rank_table import RankRow
from select_service.fastpath import pair_scene_layout

_encode = msgspec.json.Encoder().encode


HANDOFFS_KEPT = 4096
"""Number of texts of hand-overs that are kept for a partition, some 500 bytes each."""


class _HandoffText:
    """Text of the hand-overs between two ranks, split where the identity of a transfer stands."""

    def __init__(self, prefill: RankRow, decode: RankRow) -> None:
        self._prefill, self._mint = prefill, minter_of(prefill)
        self.names_decode = names_decode_worker(prefill)
        # An identity like any other: no client can have written this name into a registration.
        example = None if self._mint is None else self._mint(prefill, SystemRandom())
        text = b',"handoff":%b}' % _encode(make_handoff_of(prefill, decode, example))
        self._parts = [text] if example is None else text.split(str(example).encode())

    def encode(self, rng: Random) -> bytes:
        """Return the end of an answer, with a new identity."""
        if self._mint is None:
            return self._parts[0]
        return str(self._mint(self._prefill, rng)).encode().join(self._parts)


class PairScene:
    """Arrays of a partition that the kernel reads, for one version of its rank table.

    header: layout in pair_scene_layout
    """

    def __init__(
        self, partition: Partition, links: LinkState, decided: npt.NDArray[np.int64]
    ) -> None:
        """decided: counters of all decisions about pairs"""
        self.partition, self.placer, self.version = partition, links.placer, links.version
        self.table = partition.table
        self._roles = np.concatenate([links.prefills, links.decodes])
        self._masks = np.zeros(3 * len(links.prefills), np.bool_)
        self._leg_name = np.zeros(pair_scene_layout.LEG_NAME_BYTES, np.uint8)
        self.header = np.zeros(pair_scene_layout.SCENE_LENGTH, np.int64)
        arrays: dict[int, npt.NDArray[Any]] = {
            pair_scene_layout.PAIR: self.placer.header,
            pair_scene_layout.WORK_PARAMETERS: self.placer.parameters,
            pair_scene_layout.ROLES: self._roles,
            pair_scene_layout.MASKS: self._masks,
            pair_scene_layout.LEG_NAME: self._leg_name,
            pair_scene_layout.TRAFFIC: links.traffic.words,
            pair_scene_layout.DECIDED: decided,
        }
        for pair, array in arrays.items():
            store_pointer(self.header, pair, array)
        self.header[pair_scene_layout.SCOPE_BYTES] = len(_scope_of(partition))
        self._handoffs: dict[tuple[int, int | None], _HandoffText] = {}

    @property
    def n_open(self) -> int:
        """Number of ranks that took requests at the last choice."""
        return int(self.header[pair_scene_layout.N_OPEN])

    @property
    def policy_name(self) -> str:
        """Name of the partition's policy."""
        return self.partition.placer.policy.name

    def encode_handoff(self, slots: tuple[int, int], rng: Random) -> bytes:
        """Return the end of an answer, with its hand-over.  slots: of prefill and decode"""
        prefill, decode = slots
        text = self._handoffs.get((prefill, None)) or self._handoffs.get(slots)
        if text is None:
            row_at = self.partition.table.row_at
            text = _HandoffText(row_at(prefill), row_at(decode))
            if len(self._handoffs) >= HANDOFFS_KEPT:
                self._handoffs.clear()
            self._handoffs[prefill, decode if text.names_decode else None] = text
        return text.encode(rng)


def _scope_of(partition: Partition) -> bytes:
    """Return the members that name a partition, as the texts of its ranks begin."""
    key = partition.key
    members = {
        "model_name": key.model_name,
        "tenant_id": key.tenant_id,
        "routing_group": key.tenant_id,
    }
    return _encode(members)[1:-1] + b","
