"""Chance that a seed decides: what is drawn from one seed is the same in every run, on every machine."""

from random import Random


def seeded(seed: str) -> Random:
    return Random(seed)  # noqa: S311  (a secret would make no two runs alike)
