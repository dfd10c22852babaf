"""A small decoder in numpy, so that a wrong weight affects answers as in a real model.

Multi-head attention with position codes added to the input, layers with RMS norm and a gated
perceptron. Random weights of bfloat16 values, so that each bit of a weight has the same meaning as
on a GPU. Greedy; the same seed gives the same model everywhere.
"""

from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.builders.toy_engine import LOWEST, Step

VOCAB, WIDTH, LAYERS, HEADS, HIDDEN = 256, 64, 3, 4, 192
LIKELY = 5
SCALE = 1.5
"""Scale of the weights, so that answers are neither certain nor arbitrary."""

Floats = npt.NDArray[np.float32]


class Flip(NamedTuple):
    """Flip of one bit of a weight."""

    name: str
    at: int
    bit: int


class Decoder:
    """Model with random weights.

    weights: float32 arrays by name; the lower half of each word is zero
    """

    def __init__(self, seed: int) -> None:
        self._guesses: dict[tuple[int, ...], list[int]] = {}
        self._rng = np.random.default_rng(seed)
        self.weights = {"embed": self._draw_weights(VOCAB, WIDTH, 1.0)}
        for layer in range(LAYERS):
            for part in ("query", "key", "value", "mixed"):
                self.weights[f"{part}{layer}"] = self._draw_weights(WIDTH, WIDTH)
            for part in ("gate", "up"):
                self.weights[f"{part}{layer}"] = self._draw_weights(WIDTH, HIDDEN)
            self.weights[f"down{layer}"] = self._draw_weights(HIDDEN, WIDTH)
        self.weights["head"] = self._draw_weights(WIDTH, VOCAB)

    def _draw_weights(self, rows: int, columns: int, scale: float = 0.0) -> Floats:
        drawn = self._rng.standard_normal((rows, columns)) * (scale or SCALE * rows**-0.5)
        words = drawn.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return words.view(np.float32)

    def draw_flip(self, rng: Random, bit: int) -> Flip:
        """Return a flip of that bit in a random weight; all weights are equally likely."""
        sizes = [weights.size for weights in self.weights.values()]
        (name,) = rng.choices(list(self.weights), sizes)
        return Flip(name, rng.randrange(self.weights[name].size), bit)

    def flip(self, flip: Flip) -> None:
        """Flip a bit; a second call with the same flip restores the weight.

        bit: 15 the sign, 14 to 7 the exponent, then the rest
        """
        words = self.weights[flip.name].reshape(-1).view(np.uint32)
        words[flip.at] ^= np.uint32(1 << (16 + flip.bit))

    def generate(
        self, prompt: list[int], count: int, seed: int = 0, noise: float = 0.0
    ) -> list[Step]:
        """Return a Step for each of `count` tokens.

        noise: standard deviation of the noise of the logits

        The last answer to the prompt serves as a guess, which is computed at once as far as the
        guess is right.
        """
        rng, tokens, steps = np.random.default_rng(seed), [x % VOCAB for x in prompt], []
        guess = self._guesses.setdefault(tuple(prompt), [])
        while len(steps) < count:
            ahead = guess[len(steps) : count - 1]
            for logits in self._logits(tokens + ahead, len(tokens) - 1):
                steps.append(_chosen(logits + noise * rng.standard_normal(VOCAB)))
                tokens.append(steps[-1].read_token)
                if guess[len(steps) - 1 : len(steps)] != tokens[-1:]:
                    break
        guess[:] = [step.read_token for step in steps]
        return steps

    def spoil(self) -> None:
        """Replace the logits by NaN."""
        self.weights["head"][:] = np.nan

    def _logits(self, tokens: list[int], first: int) -> npt.NDArray[np.float64]:
        """Return the logits of the tokens that follow each position from `first` on."""
        with np.errstate(all="ignore"):
            x = self.weights["embed"][tokens] + _positions(len(tokens))
            for layer in range(LAYERS):
                x = x + self._attention(_normed(x), layer)
                x = x + self._perceptron(_normed(x), layer)
            return (_normed(x[first:]) @ self.weights["head"]).astype(np.float64)

    def _attention(self, x: Floats, layer: int) -> Floats:
        query, key, value = (
            (x @ self.weights[f"{part}{layer}"]).reshape(len(x), HEADS, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) * (WIDTH // HEADS) ** -0.5
        scores = np.where(np.tri(len(x), dtype=bool), scores, np.float32(-1e30))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True)) @ value
        return mixed.swapaxes(0, 1).reshape(len(x), WIDTH) @ self.weights[f"mixed{layer}"]

    def _perceptron(self, x: Floats, layer: int) -> Floats:
        gate = x @ self.weights[f"gate{layer}"]
        gated = gate / (1.0 + np.exp(-gate)) * (x @ self.weights[f"up{layer}"])
        return gated @ self.weights[f"down{layer}"]


def _normed(x: Floats) -> Floats:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _positions(length: int) -> Floats:
    """Return sines and cosines of geometric wavelengths."""
    angles = np.arange(length)[:, None] / 1e4 ** (np.arange(WIDTH // 2) * 2 / WIDTH)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32) * 0.3


def _chosen(logits: npt.NDArray[np.float64]) -> Step:
    """Return the likeliest token; a value that is not finite is written as engines write NaN."""
    with np.errstate(all="ignore"):
        shifted = logits - logits.max()
        logprobs = shifted - np.log(np.exp(shifted).sum())
    logprobs = np.where(np.isfinite(logprobs), np.maximum(logprobs, LOWEST), LOWEST)
    order = np.argsort(-logprobs, kind="stable")[:LIKELY]
    likely = {int(token): float(logprobs[token]) for token in order}
    return Step(int(order[0]), float(logprobs[order[0]]), likely)
