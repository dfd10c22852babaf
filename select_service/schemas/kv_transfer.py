"""Transfer of KV blocks from and to a worker, as given in a registration."""

from typing import Annotated, Literal

from msgspec import Meta

from select_service.schemas.common import Name, RequestBody

ENGINE_ID_CHARS_MAX = 256
Port = Annotated[int, Meta(ge=1, le=65535)]
TransferKind = Literal["nixl", "mooncake", "lmcache", "moriio", "sglang", "tensorrt_llm"]


class KvTransferFields(RequestBody, kw_only=True, omit_defaults=True):
    """Transfer of KV blocks from and to a worker, for pairs; every part is optional."""

    kind: TransferKind | None = None
    """Connector of the engine, which decides the parameters of the hand-over: `nixl`, `mooncake`,
    `lmcache` or `moriio` of vLLM, `sglang`, `tensorrt_llm`. When omitted, the caller
    fills in the parameters.
    """
    bytes_per_token: Annotated[float, Meta(gt=0.0, le=1e9)] | None = None
    """Bytes of keys and values of one token over all layers, as transferred."""
    link_gbps: Annotated[float, Meta(gt=0.0, le=1e6)] | None = None
    """Nominal speed of the network link of the worker's host, gigabits per second."""
    host: Name | None = None
    """Name of the worker's host; within a host, blocks move over NVLink or memory. When omitted,
    `host` in `topology_domains`.
    """
    rack: Name | None = None
    """Name of the worker's rack; when omitted, `rack` in `topology_domains`."""
    bootstrap_host: Name | None = None
    """Host for transfers: of the bootstrap server (SGLang, Mooncake), or of the connector (MoRIIO);
    when omitted, the host of `endpoint`.
    """
    bootstrap_port: Port | None = None
    """Port of the bootstrap server; when omitted, the engine's default."""
    handshake_port: Port | None = None
    """Handshake port of MoRIIO in write mode; omitted in read mode."""
    notify_port: Port | None = None
    """Notification port of MoRIIO in write mode; omitted in read mode."""
    engine_ids: dict[int, Annotated[str, Meta(max_length=ENGINE_ID_CHARS_MAX)]] | None = None
    """Engine ids of the ranks by data-parallel rank, as the connector knows them (Mooncake)."""
