"""Fleet of engines with a dense cache and states, whose reusable prefixes end inside blocks."""

from random import Random

from hypothesis import strategies as st

from indexer.hashing.engine_names import NameScheme
from indexer.index.kv_cache_facts import KvCacheFacts
from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement.router_config import RouterConfig
from tests.builders import a_selector, a_worker
from tests.indexer.events.grouped_rank import GroupedRank
from tests.models.cache_groups_model import DENSE, STATE, CacheGroupsModel, GroupModel
from tests.models.grouped_engine import GroupedEngine

KEY, SIZE, TOKENS = PartitionKey("m", "default"), 8, 42
SPEED, KV_BYTES, GBPS = 20_000.0, 131_072.0, 400.0
GROUPS = [GroupModel(0, DENSE, SIZE), GroupModel(1, STATE, SIZE)]
ENDS = st.lists(st.integers(1, TOKENS), max_size=3)
"""Lengths of the beginnings of the prompt that a rank has computed."""
PRIMER = [3] * (2 * SIZE + SIZE // 2 + 1)
"""Prompt that reveals a rank's groups and units; no other prompt has the same beginning."""


class GroupedFleet:
    """Selector whose ranks are engines with a dense cache and states inside blocks."""

    def __init__(self, unit, ends, *, replay=0, options=(), names_kv_sources=False, **fields):
        """ends: lengths of the computed prefixes of the prompt, by rank
        options: options of the policy
        fields: further fields of each worker
        """
        self.selector = a_selector(
            RouterConfig(policy="work", policy_options=options),
            decisions_kept=4,
            names_kv_sources=names_kv_sources,
        )
        self.engines = []
        for number, of_rank in enumerate(ends, 1):
            link = {"bytes_per_token": KV_BYTES, "link_gbps": GBPS}
            facts = {"block_size": SIZE, "kv_transfer": link, "prefill_tokens_per_s": SPEED}
            self.selector.register_worker(a_worker(number, **facts, **fields))
            writer = self.partition.table.writer_of(Rank(number, 0))
            facts = KvCacheFacts(replay=replay)
            rank = GroupedRank(SIZE, facts, self.partition.index, writer=writer)
            scheme = NameScheme("sha256", "vllm-none-hash", unit, 0)
            engine = GroupedEngine(CacheGroupsModel(GROUPS, unit, replay=replay), Random(0), scheme)
            rank.apply_batch(engine.introduce(PRIMER))
            for end in of_rank:
                rank.apply_batch(engine.compute([*range(end), TOKENS + 1]))
            self.engines.append(engine)

    @property
    def partition(self):
        return self.selector.fleet.partitions[KEY]

    def reusable(self):
        """Reusable tokens of the prompt on each rank, by the engines' own rule."""
        return [engine.model.reusable_tokens(list(range(TOKENS))) for engine in self.engines]
