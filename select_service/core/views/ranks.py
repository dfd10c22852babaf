"""Load and overlap of the ranks of one partition, as the bodies that clients read."""

import numpy as np
import numpy.typing as npt

from select_service.bodies.inspection import OverlapRow, RankLoad
from select_service.core.decide.placement_kernels import DECODE, EFFECTIVE_PREFILL_TOKENS
from select_service.core.decide.policies import policy_of
from select_service.core.decide.prompt import Prompt
from select_service.core.decide.router_config import RouterConfig
from select_service.core.fleet.partition import Partition
from select_service.core.load import kernels


def loads_of(partition: Partition) -> list[RankLoad]:
    """Current load of every rank, by worker and rank."""
    load = partition.load
    return _rank_loads(partition, load.totals[:, kernels.PREFILL_TOKENS], load.active_blocks())


def potential_loads_of(
    partition: Partition, prompt: Prompt, config: RouterConfig
) -> list[RankLoad]:
    """What the load of every rank would be with this prompt on it."""
    partition.placing.place(prompt, config, partition.table.open)
    terms = partition.placing.last.terms
    prefill = partition.load.totals[:, kernels.PREFILL_TOKENS]
    if config.track_prefill_tokens:
        prefill = prefill + terms[EFFECTIVE_PREFILL_TOKENS].astype(np.int64)
    return _rank_loads(partition, prefill, terms[DECODE].astype(np.int64))


def overlap_rows(partition: Partition, prompt: Prompt, config: RouterConfig) -> list[OverlapRow]:
    """Matched blocks of every rank, by worker and rank."""
    matched, policy = partition.index.match(prompt.block_hashes).tolist(), policy_of(config)
    rows = []
    for rank, slot in sorted(partition.table.slots()):
        gpu, cpu, _, external = matched[slot]
        rows.append(
            OverlapRow(
                worker_id=rank.worker_id,
                dp_rank=rank.dp_rank,
                device_blocks=gpu,
                host_pinned_blocks=cpu,
                disk_blocks=external,
                host_pinned_extension_blocks=cpu - gpu,
                disk_extension_blocks=external - cpu,
                shared_beyond_device_blocks=None,
                router_credit_blocks=policy.credit_blocks(matched[slot], config),
            )
        )
    return rows


def _rank_loads(
    partition: Partition,
    prefill_tokens: npt.NDArray[np.int64],
    decode_blocks: npt.NDArray[np.int64],
) -> list[RankLoad]:
    """Of plain lists: an array costs as much per element as all the rest."""
    requests = partition.load.totals[:, kernels.REQUESTS].tolist()
    tokens, blocks = prefill_tokens.tolist(), decode_blocks.tolist()
    return [
        RankLoad(
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            potential_prefill_tokens=tokens[slot],
            potential_decode_blocks=blocks[slot],
            active_requests=requests[slot],
        )
        for rank, slot in sorted(partition.table.slots())
    ]
