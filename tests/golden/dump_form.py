"""The blocks of a dump as lines that can be compared, however they are grouped into events."""

from typing import Any


def blocks_of(events: list[Any]) -> list[str]:
    """Sorted "worker/rank tier parent>block contents" of every block, by engine hash."""
    lines = []
    for event in events:
        where = f"{event['worker_id']}/{event['event']['dp_rank']} {event['storage_tier']}"
        stored = event["event"]["data"]["stored"]
        parent = stored["parent_hash"]
        for block in stored["blocks"]:
            lines.append(f"{where} {parent}>{block['block_hash']} {block['tokens_hash']}")
            parent = block["block_hash"]
    return sorted(lines)


def parents_come_first(events: list[Any]) -> bool:
    """Does every GPU block with a parent among the GPU blocks of its rank come after it?"""
    ranked: dict[Any, list[tuple[Any, Any]]] = {}
    for event in events:
        if event["storage_tier"] == "device":
            stored = event["event"]["data"]["stored"]
            pairs = ranked.setdefault((event["worker_id"], event["event"]["dp_rank"]), [])
            parent = stored["parent_hash"]
            for block in stored["blocks"]:
                pairs.append((parent, block["block_hash"]))
                parent = block["block_hash"]
    for pairs in ranked.values():
        places = {block: i for i, (_, block) in enumerate(pairs)}
        if any(places.get(parent, -1) > i for i, (parent, _) in enumerate(pairs)):
            return False
    return True
