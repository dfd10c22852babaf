"""The blocks of a dump as comparable lines, however the blocks are grouped into events."""

from typing import Any


def blocks_of(events: list[Any]) -> list[str]:
    """Return the sorted lines "worker/rank tier parent>block contents" of all blocks."""
    lines = {}
    for event in events:
        where = f"{event['worker_id']}/{event['event']['dp_rank']} {event['storage_tier']}"
        for name in event["event"]["data"].get("removed", {"block_hashes": []})["block_hashes"]:
            lines = {key: line for key, line in lines.items() if key[:2] != (where, name)}
        stored = event["event"]["data"].get("stored", {"parent_hash": None, "blocks": []})
        parent = stored["parent_hash"]
        for block in stored["blocks"]:
            name, content = block["block_hash"], block["tokens_hash"]
            lines[where, name, parent] = f"{where} {parent}>{name} {content}"
            parent = name
    return sorted(lines.values())


def parents_come_first(events: list[Any]) -> bool:
    """Return whether GPU blocks come after their parents, if the rank has these on the GPU."""
    ranked: dict[Any, list[tuple[Any, Any]]] = {}
    for event in events:
        if event["storage_tier"] == "device" and "stored" in event["event"]["data"]:
            stored = event["event"]["data"]["stored"]
            pairs = ranked.setdefault((event["worker_id"], event["event"]["dp_rank"]), [])
            parent = stored["parent_hash"]
            for block in stored["blocks"]:
                pairs.append((parent, block["block_hash"]))
                parent = block["block_hash"]
    for pairs in ranked.values():
        places: dict[Any, int] = {}
        for i, (_, block) in enumerate(pairs):
            places.setdefault(block, i)
        if any(places.get(parent, -1) > i for i, (parent, _) in enumerate(pairs)):
            return False
    return True
