"""Facts about transfers of KV blocks that an engine reports, as `role` and `kv_transfer`.

Only what the engine says is returned. No engine reports the bytes of a token over all of its
layers and devices, or the speed of its network: the template gives them.

Sources: vLLM 0.33 `config/kv_transfer.py` (`kv_connector`, `kv_role`, `engine_id`) and `envs.py`
(`VLLM_MOONCAKE_BOOTSTRAP_PORT`), both in `/server_info` of the development mode; SGLang 0.5.23
`server_args.py` (`disaggregation_mode`, `disaggregation_bootstrap_port`), in `/server_info`.
"""

from collections.abc import Mapping
from typing import Any

from select_service.core.registry.discovery.record_template import Fields

_KINDS = {
    "NixlConnector": "nixl",
    "NixlPullConnector": "nixl",
    "MooncakeConnector": "mooncake",
    "LMCacheConnectorV1": "lmcache",
    "LMCacheMPConnector": "lmcache",
    "MoRIIOConnector": "moriio",
}
_VLLM_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
_SGLANG_ROLES = {"prefill": "prefill", "decode": "decode"}
_ENGINE_ID_CHARS_MAX = 256


def read_vllm_transfer_facts(info: Mapping[str, Any], n_ranks: int) -> Fields:
    """Return `role` and `kv_transfer` of a vLLM engine, as far as reported.

    info: answer of /server_info;  n_ranks: data-parallel ranks of the engine
    """
    config = _object_in(_object_in(info, "vllm_config"), "kv_transfer_config")
    kind = _KINDS.get(str(config.get("kv_connector")))
    if kind is None:
        return {}
    facts: Fields = {"kind": kind}
    if kind == "mooncake":
        port = _port_of(_object_in(info, "vllm_env").get("VLLM_MOONCAKE_BOOTSTRAP_PORT"))
        facts |= {} if port is None else {"bootstrap_port": port}
        engine_id = config.get("engine_id")
        # Data-parallel ranks add an ending of their own to the id.
        if n_ranks == 1 and isinstance(engine_id, str) and len(engine_id) <= _ENGINE_ID_CHARS_MAX:
            facts["engine_ids"] = {0: engine_id}
    role = _VLLM_ROLES.get(str(config.get("kv_role")))
    return {"kv_transfer": facts} | ({} if role is None else {"role": role})


def read_sglang_transfer_facts(info: Mapping[str, Any]) -> Fields:
    """Return `role` and `kv_transfer` of an SGLang engine; empty if it does both parts.

    info: answer of /server_info
    """
    role = _SGLANG_ROLES.get(str(info.get("disaggregation_mode")))
    if role is None:
        return {}
    facts: Fields = {"kind": "sglang"}
    port = _port_of(info.get("disaggregation_bootstrap_port"))
    # Only a prefill engine has a bootstrap server.
    if role == "prefill" and port is not None:
        facts["bootstrap_port"] = port
    return {"role": role, "kv_transfer": facts}


def _object_in(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _port_of(value: object) -> int | None:
    return value if type(value) is int and 1 <= value <= 65535 else None
