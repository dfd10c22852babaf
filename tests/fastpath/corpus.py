"""Inputs that led scripts/fuzz to new places of the reader: a bytes literal per line."""

import ast
from collections.abc import Iterable
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus.txt")


def load() -> list[bytes]:
    return [ast.literal_eval(line) for line in CORPUS.read_text().splitlines()]


def save(inputs: Iterable[bytes]) -> None:
    """Write the inputs, the shortest first."""
    ordered = sorted(inputs, key=lambda data: (len(data), data))
    CORPUS.write_text("".join(f"{data!r}\n" for data in ordered))
