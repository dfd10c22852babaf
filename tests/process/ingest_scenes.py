"""Shared helpers of the ingest tests: sources, listeners and lookups in an index."""

from indexer.events.kv_event_source import KvSource
from tests.builders.polling import PATIENCE_S
from tests.process.fake_engine import BLOCK_SIZE, Chain

CHAIN = Chain()


def close(ingest):
    """Close the ingest threads; on a busy machine, wait longer for them than `close` does."""
    ingest.close()
    for thread in ingest._threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} does not end"
    ingest.close()


def a_source(endpoint, writer, *, replay=None, worker_id=1, dp_rank=0, siblings=None, key=None):
    return KvSource(
        worker_id=worker_id,
        dp_rank=dp_rank,
        endpoint=endpoint,
        replay_endpoint=replay,
        block_size=BLOCK_SIZE,
        is_eagle=False,
        counted=True,
        writers={dp_rank: writer, **(siblings or {})},
        server_key=key,
    )


def follow(ingest, sources):
    """Replace the listeners by those of these sources."""
    changed = {worker_id: [] for worker_id, _ in ingest.sources()}
    for source in sources:
        changed.setdefault(source.worker_id, []).append(source)
    ingest.reconcile(changed)


def listen(ingest, index, engine, **source):
    """Add one listener for the engine; return the writer after the subscription has arrived."""
    writer = index.open_slot()
    source = {"replay": engine.replay_endpoint, **source}
    follow(ingest, [a_source(engine.endpoint, writer, **source)])
    engine.await_subscriber()
    return writer


def count_held_blocks(index, writer, n_blocks, chain=CHAIN):
    row = index.match(chain.path(n_blocks))
    return int(row[writer.slot, 0]) if writer.slot < len(row) else 0


def status(ingest, worker_id=1, dp_rank=0):
    return ingest.status_of((worker_id, dp_rank))


def publish_chain(engine, blocks, **how):
    for block in blocks:
        engine.publish(CHAIN.stored(block), **how)
