"""Hand-over of KV blocks between two engines, as each connector needs it.

Sources, read in vLLM 0.33.0, SGLang 0.5.23 and TensorRT-LLM's main branch:

* NIXL: `nixl/pull_scheduler.py` and `nixl/metadata.py` below vLLM's
  `vllm/distributed/kv_transfer/kv_connector/v1`. The prefill worker holds the blocks under a lease
  and names everything that the decode worker needs in `kv_transfer_params` of its reply.
* Mooncake: `mooncake/mooncake_connector.py` there. The decode worker needs `transfer_id`,
  `remote_bootstrap_addr` (a URL, queried at `/query` below) and `remote_engine_id`, the
  `engine_id` of the data-parallel rank in the answer to `/query` (`mooncake/mooncake_utils.py`).
* MoRIIO: `moriio/moriio_common.py` and `moriio/moriio_connector.py` there. In read mode the reply
  of the prefill worker is passed on; in write mode each worker needs the address of the other, and
  both are called at once (`examples/.../moriio_toy_proxy_server.py`).
* LMCache: blocks go through LMCache's store (`lmcache_connector.py` there), without parameters.
* SGLang: `srt/managers/io_struct.py`, `srt/managers/data_parallel_controller.py` (a request goes to
  data-parallel rank `bootstrap_room % dp_size`) and `srt/disaggregation/common/conn.py`. An engine
  numbers the samples of a request from its room on, so the rooms of a request with `n > 1` would
  belong to other ranks: such requests need one pair per sample.
* TensorRT-LLM: `tensorrt_llm/serve/openai_disagg_service.py` and
  `tensorrt_llm/llmapi/disagg_utils.py`. Parameters of the reply stand in its first choice.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from select_service.core.workers.rank_table import RankRow
from select_service.schemas.kv_transfer import KvTransferFields, TransferKind
from select_service.schemas.pairs import Handoff

BOOTSTRAP_ROOM_BITS = 63
"""Bits of a bootstrap room of SGLang, a signed 64-bit number that is not negative."""
MOONCAKE_BOOTSTRAP_PORT = 8998
"""Default of vLLM's VLLM_MOONCAKE_BOOTSTRAP_PORT."""
GLOBAL_REQUEST_IDS = (1 << 42, 1 << 63)
"""Range of TensorRT-LLM's request ids that are unique over its workers."""

_ONE_TOKEN = {"max_tokens": 1, "stream": False}


Minted: TypeAlias = str | int
"""Identity of a transfer."""


class LinkedRanks(NamedTuple):
    """Both ranks of a pair, with what the prefill worker's registration gives about transfers."""

    given: KvTransferFields
    prefill: RankRow
    decode: RankRow


def make_handoff(prefill: RankRow, decode: RankRow, rng: Random) -> Handoff:
    """Return the hand-over from a prefill rank to a decode rank.

    The connector of the prefill worker counts; engines of different connectors cannot exchange
    blocks, which the doctor reports.
    """
    mint = minter_of(prefill)
    return make_handoff_of(prefill, decode, None if mint is None else mint(prefill, rng))


def minter_of(prefill: RankRow) -> "Callable[[RankRow, Random], Minted] | None":
    """Return the minter of identities of transfers from a rank; None without identities."""
    given = prefill.worker.registration.kv_transfer
    return None if given is None or given.kind is None else _MINTERS.get(given.kind)


def names_decode_worker(prefill: RankRow) -> bool:
    """Return whether hand-overs from a rank depend on the decode rank."""
    given = prefill.worker.registration.kv_transfer
    return given is not None and given.kind == "moriio"


def make_handoff_of(prefill: RankRow, decode: RankRow, minted: Minted | None) -> Handoff:
    """Return the hand-over with this identity; None where `minter_of` gives none."""
    given = prefill.worker.registration.kv_transfer
    if given is None or given.kind is None:
        return Handoff(order="sequential", peer_binding=False, missing=["kind"])
    return _MAKERS[given.kind](LinkedRanks(given, prefill, decode), minted)


def _nixl(ranks: LinkedRanks, minted: Minted | None) -> Handoff:
    return _reply_passed_on("nixl", {})


def _reply_passed_on(kind: TransferKind, more: dict[str, Any]) -> Handoff:
    """Return a hand-over in which the decode worker gets the reply's `kv_transfer_params`."""
    params = {"do_remote_decode": True, "do_remote_prefill": False, **more}
    return Handoff(
        order="sequential",
        peer_binding=False,
        kind=kind,
        prefill_params={**_ONE_TOKEN, "kv_transfer_params": params},
        pass_on="kv_transfer_params",
        reply_path="kv_transfer_params",
    )


def _mooncake(ranks: LinkedRanks, transfer_id: Minted | None) -> Handoff:
    given, prefill, _ = ranks
    missing: list[str] = []
    here = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
    there = {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": transfer_id}
    if (host := transfer_host(prefill)) is None:
        missing.append("bootstrap_host")
    else:
        port = given.bootstrap_port or MOONCAKE_BOOTSTRAP_PORT
        there["remote_bootstrap_addr"] = f"http://{host}:{port}"
    if (engine_id := (given.engine_ids or {}).get(prefill.rank.dp_rank)) is None:
        missing.append("engine_ids")
    else:
        there["remote_engine_id"] = engine_id
    return Handoff(
        order="concurrent",
        peer_binding=True,
        kind="mooncake",
        prefill_params={**_ONE_TOKEN, "kv_transfer_params": here},
        decode_params={"kv_transfer_params": there},
        missing=missing,
    )


def _lmcache(ranks: LinkedRanks, minted: Minted | None) -> Handoff:
    return Handoff(
        order="sequential", peer_binding=False, kind="lmcache", prefill_params=dict(_ONE_TOKEN)
    )


def _moriio(ranks: LinkedRanks, transfer_id: Minted | None) -> Handoff:
    # Only engines in write mode have to find each other before the prefill.
    if ranks.given.notify_port is None:
        return _reply_passed_on("moriio", {"transfer_id": transfer_id})
    missing: list[str] = []
    here = _moriio_peer(ranks.decode, missing)
    there = _moriio_peer(ranks.prefill, missing)
    here |= {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
    there |= {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": transfer_id}
    there |= {"remote_dp_rank": ranks.prefill.rank.dp_rank, "remote_dp_rank_override": True}
    return Handoff(
        order="concurrent",
        peer_binding=True,
        kind="moriio",
        prefill_params={**_ONE_TOKEN, "kv_transfer_params": here},
        decode_params={"kv_transfer_params": there},
        missing=missing,
    )


def _moriio_peer(row: RankRow, missing: list[str]) -> dict[str, Any]:
    """Return the address of a worker for the other; add missing fields to `missing`."""
    given = row.worker.registration.kv_transfer or KvTransferFields()
    values = {
        "bootstrap_host": ("remote_host", transfer_host(row)),
        "handshake_port": ("remote_handshake_port", given.handshake_port),
        "notify_port": ("remote_notify_port", given.notify_port),
    }
    missing += [name for name, (_, value) in values.items() if value is None]
    address: dict[str, Any] = {key: value for key, value in values.values() if value is not None}
    ranks = len(row.worker.dp_ranks())
    return {**address, "remote_engine_id": None, "remote_block_ids": None, "remote_dp_size": ranks}


def _sglang(ranks: LinkedRanks, room: Minted | None) -> Handoff:
    given, prefill, _ = ranks
    params: dict[str, Any] = {"bootstrap_room": room}
    if (host := transfer_host(prefill)) is not None:
        params["bootstrap_host"] = host
    # Without a port in the request an engine uses its own `--disaggregation-bootstrap-port`.
    if given.bootstrap_port is not None:
        params["bootstrap_port"] = given.bootstrap_port
    return Handoff(
        order="concurrent",
        peer_binding=True,
        kind="sglang",
        prefill_params=params,
        decode_params=params,
        missing=[] if host is not None else ["bootstrap_host"],
    )


def _tensorrt_llm(ranks: LinkedRanks, request_id: Minted | None) -> Handoff:
    here = {"request_type": "context_only", "disagg_request_id": request_id}
    there = {"request_type": "generation_only", "disagg_request_id": request_id}
    return Handoff(
        order="sequential",
        peer_binding=False,
        kind="tensorrt_llm",
        prefill_params={"stream": False, "disaggregated_params": here},
        decode_params={"disaggregated_params": there},
        pass_on="disaggregated_params",
        reply_path="choices.0.disaggregated_params",
    )


def transfer_host(row: RankRow) -> str | None:
    """Return the host of a worker for transfers, by default that of its endpoint.

    IPv6 addresses are in brackets.
    """
    registration = row.worker.registration
    given = registration.kv_transfer
    host = None if given is None else given.bootstrap_host
    if host is None and registration.endpoint:
        host = urlsplit(registration.endpoint).hostname
    return f"[{host}]" if host and ":" in host and not host.startswith("[") else host


def _mint_transfer_id(prefill: RankRow, rng: Random) -> str:
    return f"xfer-{rng.getrandbits(128):032x}"


def _mint_room(prefill: RankRow, rng: Random) -> int:
    dp_size = len(prefill.worker.dp_ranks())
    room = rng.getrandbits(BOOTSTRAP_ROOM_BITS)
    # The prefill engine sends a room to the rank with this remainder.
    room += prefill.rank.dp_rank % dp_size - room % dp_size
    return room - dp_size if room >> BOOTSTRAP_ROOM_BITS else room


def _mint_request_id(prefill: RankRow, rng: Random) -> int:
    return rng.randrange(*GLOBAL_REQUEST_IDS)


_MINTERS: dict[TransferKind, Callable[[RankRow, Random], Minted]] = {
    "mooncake": _mint_transfer_id,
    "moriio": _mint_transfer_id,
    "sglang": _mint_room,
    "tensorrt_llm": _mint_request_id,
}
_MAKERS: dict[TransferKind, Callable[[LinkedRanks, Minted | None], Handoff]] = {
    "nixl": _nixl,
    "mooncake": _mooncake,
    "lmcache": _lmcache,
    "moriio": _moriio,
    "sglang": _sglang,
    "tensorrt_llm": _tensorrt_llm,
}
