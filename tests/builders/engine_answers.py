"""Recorded answers of real engines about themselves: see scripts/recording/engine_answers.py."""

import json
import lzma
from pathlib import Path

from select_service.core.registry.discovery.engine_facts import INFO

DIRECTORY = Path(__file__).parents[1] / "recordings" / "answers"


def recorded(name, without=()):
    """Return the recorded answers by path.

    name: recording, such as vllm-0.33.0-2
    """
    found = json.loads(lzma.decompress((DIRECTORY / f"{name}.json.xz").read_bytes()))
    return {path: text.encode() for path, text in found.items() if path not in without}


def production(name):
    """Return the answers of a vLLM that is not in development mode."""
    return recorded(name, without=(INFO,))
