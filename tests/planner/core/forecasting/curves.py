"""Series for comparing predictors: each predictor is right on a series where another is wrong."""

from math import pi, sin
from random import Random


def ramp(points: int, _: Random) -> list[float]:
    return [20.0 + 5.0 * at for at in range(points)]


def noise(points: int, random: Random) -> list[float]:
    return [max(0.0, random.gauss(100.0, 15.0)) for _ in range(points)]


def sine(points: int, random: Random) -> list[float]:
    return [100.0 + 60.0 * sin(2 * pi * at / 40) + random.gauss(0.0, 3.0) for at in range(points)]


def bursts(points: int, random: Random) -> list[float]:
    return [400.0 if at % 11 in (7, 8) else random.uniform(30.0, 40.0) for at in range(points)]


def walk(points: int, random: Random) -> list[float]:
    at, values = 120.0, []
    for _ in range(points):
        at = max(2.0, at + random.gauss(0.0, 9.0))
        values.append(at)
    return values


CURVES = {"ramp": ramp, "noise": noise, "sine": sine, "bursts": bursts, "walk": walk}
