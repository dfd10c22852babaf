"""Requirements of registered workers, and the shape that the workers of a partition share."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from select_service.core.assumed.rank_modes import AssumptionRules
from select_service.core.identity import PartitionKey
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.worker_catalog import RegisteredWorker

PARTITIONS_MAX = 1024

PartitionShape: TypeAlias = tuple[PartitionKey, int, bool]
"""Partition key, block size, and whether the model uses EAGLE."""


class RegistrationRules(NamedTuple):
    """Requirements of registered workers.

    use_kv_events: workers must declare their event endpoints
    queueing: workers must declare their max_num_batched_tokens
    ranks_max: maximum number of ranks with event listeners
    assumptions: which ranks assume their bookings
    """

    use_kv_events: bool
    queueing: bool = False
    ranks_max: int = 1 << 32
    assumptions: AssumptionRules = AssumptionRules()


def find_misfits(
    worker: RegisteredWorker, partitions: Mapping[PartitionKey, Partition]
) -> list[str]:
    """Return the reasons why the worker does not fit the shape of its partition."""
    partition = partitions.get(worker.key)
    if partition is None:
        full = len(partitions) >= PARTITIONS_MAX
        text = f"reconciliation failed: partition limit reached ({PARTITIONS_MAX})"
        return [text] if full else []
    if partition.table.has_only(worker.worker_id):
        return []
    scope = f"model={worker.key.model_name} tenant={worker.key.tenant_id}"
    if partition.block_size != worker.registration.block_size:
        return [
            f"reconciliation failed: block_size mismatch for {scope}: "
            f"existing={partition.block_size} requested={worker.registration.block_size}"
        ]
    if partition.is_eagle != worker.is_eagle:
        return [
            f"reconciliation failed: is_eagle mismatch for {scope}: "
            f"existing={str(partition.is_eagle).lower()} "
            f"requested={str(worker.is_eagle).lower()}"
        ]
    return []


def shape_of(partition: Partition) -> PartitionShape:
    return partition.key, partition.block_size, partition.is_eagle


def shape_for_worker(worker: RegisteredWorker) -> PartitionShape:
    """Return the partition shape of a schedulable worker."""
    size = worker.registration.block_size
    assert size
    return worker.key, size, worker.is_eagle
