"""Made-up conversations: shared instructions, turns, forks, repeats, clears."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

FREQUENT_TOKENS, ALL_TOKENS = 128, 151_000
"""Most token ids are small, so that recordings are."""
INSTRUCTIONS = (30, 260, 410, 530)
"""Lengths of the instructions with which conversations begin."""
QUESTIONS = (2, 18, 40, 70, 170, 390)
ANSWERS = (0, 0, 1, 4, 30, 90)
TALKS = 6


class Turn(NamedTuple):
    """Request of a conversation, or a clear of the cache if the prompt is None."""

    prompt: dict[str, Any] | None
    output_tokens: int = 0


class Conversations:
    """Seeded source of turns.

    longest:  tokens after which a conversation begins anew
    prefixes: salts and adapters of which a conversation has one or none
    """

    def __init__(
        self, rng: random.Random, longest: int, prefixes: tuple[dict[str, str], ...] = ()
    ) -> None:
        self._rng, self._longest = rng, longest
        scale = max(1.0, longest / 1200)
        self._lengths = [int(length * scale) for length in QUESTIONS]
        self._instructions = [self._some(int(length * scale)) for length in INSTRUCTIONS]
        self._identities = [{}, *prefixes] if prefixes else [{}]
        self._end_of_turn = self._some(4)
        self._talks = [self._opening() for _ in range(TALKS)]
        self._last = self._talks[0]

    def turns(self, count: int) -> Iterator[Turn]:
        for number in range(count):
            if number and self._rng.random() < 0.006:
                yield Turn(None)
            yield from self._next_turns()

    def part_of(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """Return a beginning of a prompt, or the prompt with a little more."""
        tokens = prompt["tokens"]
        if self._rng.random() < 0.5:
            return {**prompt, "tokens": tokens[: self._rng.randint(1, len(tokens))]}
        return {**prompt, "tokens": [*tokens, *self._some(3)]}

    def _some(self, count: int) -> list[int]:
        draw = self._rng.randrange
        return [draw(FREQUENT_TOKENS if draw(10) else ALL_TOKENS) for _ in range(count)]

    def _opening(self) -> dict[str, Any]:
        identity = self._rng.choice(self._identities)
        return {"tokens": list(self._rng.choice(self._instructions)), **identity}

    def _next_turns(self) -> Iterator[Turn]:
        rng, answer = self._rng, self._rng.choice(ANSWERS)
        kind = rng.random()
        if kind < 0.08:
            yield Turn(self._last, answer)
            return
        if kind < 0.16:
            self._last = {**self._last, "tokens": [*self._last["tokens"], *self._some(25)]}
            yield Turn(self._last, answer)
            return
        number = rng.randrange(TALKS)
        talk = self._talks[number]
        if kind < 0.3 or len(talk["tokens"]) > self._longest:
            talk = self._opening()
        elif kind < 0.42:
            other = rng.choice(self._talks)
            talk = {**other, "tokens": other["tokens"][: rng.randint(1, len(other["tokens"]))]}
        question = [*self._some(rng.choice(self._lengths)), *self._end_of_turn]
        prompt = {**talk, "tokens": [*talk["tokens"], *question]}
        self._last = prompt
        yield Turn(prompt, answer)
        if rng.random() < 0.07:
            yield Turn(prompt, answer)  # at once again: two copies of its blocks
        reply = [*self._some(answer), *self._end_of_turn]
        self._talks[number] = {**prompt, "tokens": [*prompt["tokens"], *reply]}
