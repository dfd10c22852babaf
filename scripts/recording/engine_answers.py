#!/usr/bin/env python3
"""Recorder of engine documents: the data of tests/recordings/answers.

Runs in an environment with vLLM or SGLang; needs neither a GPU nor a model. Real are the engine's
configuration, routes and collectors; simulated are the numbers of a GPU, such as the blocks of its
cache. Facts about the machine and the environment are removed. Tested with vLLM 0.33 and SGLang
0.5.23.

    python scripts/recording/engine_answers.py vllm --out tests/recordings/answers
    python scripts/recording/engine_answers.py sglang --out tests/recordings/answers

For one rank and for two: a model "qwen" with another name "qwen-latest" and two adapters.
"""

import argparse
import asyncio
import importlib.metadata
import json
import lzma
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

N_BLOCKS = 4096
"""Blocks of each rank."""
BLOCK_SIZES = {"vllm": 16, "sglang": 64}
STEP_TOKENS = 8192
EVENTS = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6557", "topic": "kv-events"}
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
INFO = "/server_info?config_format=json"
ADAPTERS = ("sql", "chat")


def vllm_answers(model: Path, n_ranks: int) -> dict[str, str]:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import vllm.platforms

    vllm.platforms.current_platform.device_type = "cpu"  # replaces a GPU
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import EngineArgs

    events = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", **EVENTS)
    arguments = EngineArgs(
        model=str(model),
        served_model_name=["qwen", "qwen-latest"],
        skip_tokenizer_init=True,
        load_format="dummy",
        block_size=BLOCK_SIZES["vllm"],
        max_num_batched_tokens=STEP_TOKENS,
        kv_events_config=events,
    )
    config = arguments.create_engine_config()
    config.parallel_config.data_parallel_size = n_ranks
    config.cache_config.num_gpu_blocks = N_BLOCKS * n_ranks  # summed up as in core_client
    return {
        "/v1/models": asyncio.run(_vllm_models(config)),
        "/metrics": _vllm_metrics(config, n_ranks),
        INFO: asyncio.run(_vllm_info(config)),
    }


async def _vllm_models(config: Any) -> str:
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    client = SimpleNamespace(model_config=config.model_config, renderer=None, input_processor=None)
    paths = [
        BaseModelPath(name=name, model_path="Qwen/Qwen3-8B") for name in ("qwen", "qwen-latest")
    ]
    models = OpenAIServingModels(client, paths)
    for adapter in ADAPTERS:
        models.lora_requests[adapter] = SimpleNamespace(
            lora_name=adapter, path=f"/adapters/{adapter}", base_model_name="qwen"
        )
    return json.dumps((await models.show_available_models()).model_dump())


def _vllm_metrics(config: Any, n_ranks: int) -> str:
    from prometheus_client import REGISTRY, generate_latest
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    for collector in list(REGISTRY._collector_to_names):
        REGISTRY.unregister(collector)
    logger = PrometheusStatLogger(config, list(range(n_ranks)))
    logger.log_metrics_info("cache_config", config.cache_config)
    return generate_latest().decode()


async def _vllm_info(config: Any) -> str:
    from vllm.entrypoints.serve.dev.server_info import api_router

    api_router._get_vllm_env_vars = dict
    api_router._get_system_env_info_cached = dict
    state = SimpleNamespace(vllm_config=config)
    request = SimpleNamespace(app=SimpleNamespace(state=state))
    answer = await api_router.show_server_info(request, config_format="json")
    return str(answer.body.decode())


def sglang_answers(model: Path, n_ranks: int) -> dict[str, str]:
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils.common import build_server_info
    from sglang.srt.utils.msgspec_utils import msgspec_to_builtins

    arguments = ServerArgs(
        model_path=str(model),
        served_model_name="qwen",
        skip_tokenizer_init=True,
        device="cpu",
        page_size=BLOCK_SIZES["sglang"],
        dp_size=n_ranks,
        chunked_prefill_size=STEP_TOKENS,
        kv_events_config=json.dumps({"publisher": "zmq", **EVENTS}),
    )
    scheduler = {"max_total_num_tokens": N_BLOCKS * BLOCK_SIZES["sglang"], "status": "ready"}
    info = build_server_info(arguments, scheduler)
    info |= {"launch_command": [], "model_path": "Qwen/Qwen3-8B", "version": _version("sglang")}
    text = json.dumps(msgspec_to_builtins(info), default=str)
    return {"/v1/models": _sglang_models(), INFO: text, "/get_server_info": text}


def _sglang_models() -> str:
    """Return the models like `available_models` of SGLang's HTTP server."""
    from sglang.srt.entrypoints.openai.protocol import ModelCard, ModelList

    cards = [ModelCard(id="qwen", root="qwen", max_model_len=32768)]
    cards += [ModelCard(id=each, root=f"/adapters/{each}", parent="qwen") for each in ADAPTERS]
    return json.dumps(ModelList(data=cards).model_dump())


def _version(engine: str) -> str:
    return importlib.metadata.version(engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "qwen"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODEL))
        make = {"vllm": vllm_answers, "sglang": sglang_answers}[arguments.engine]
        for n_ranks in (1, 2):
            answers = {
                path: text.replace(str(model), "Qwen/Qwen3-8B")
                for path, text in make(model, n_ranks).items()
            }
            name = f"{arguments.engine}-{_version(arguments.engine)}-{n_ranks}.json.xz"
            arguments.out.mkdir(parents=True, exist_ok=True)
            content = json.dumps(answers, indent=1, sort_keys=True).encode()
            (arguments.out / name).write_bytes(lzma.compress(content, preset=9))


if __name__ == "__main__":
    main()
