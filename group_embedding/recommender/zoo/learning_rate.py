"""`LearningRate`: the learning rate of each step."""

from __future__ import annotations

import dataclasses
import math

DECAYS = ("none", "linear", "polynomial", "cosine")


@dataclasses.dataclass(frozen=True)
class LearningRate:
    """A learning rate that rises from 0, stays, and decays, by steps.

    Example:

    >>> rate = ge.models.LearningRate(0.1, warmup_steps=2, decay="linear", decay_steps=4)
    >>> [round(rate.at(step), 3) for step in range(1, 8)]
    [0.05, 0.1, 0.075, 0.05, 0.025, 0.0, 0.0]

    Attributes:
      base: The learning rate between warm-up and decay.
      decay: "none", "linear", "polynomial" or "cosine".
      warmup_steps: In step i of these it is `base * i / warmup_steps`.
      decay_start: The last step before the decay; at least `warmup_steps`.
      decay_steps: How many steps the decay has; None, with a decay: unknown, an error.
      power: The exponent of a polynomial decay, `base * (steps left / decay_steps)**power`.
      end: What it is after the decay, and at least within.

    Raises:
      ValueError: `decay` is another word, or has no `decay_steps`.
    """

    base: float
    decay: str = "none"
    warmup_steps: int = 0
    decay_start: int = 0
    decay_steps: int | None = None
    power: float = 2.0
    end: float = 0.0

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ValueError(
                f"learning rate: expected decay one of {', '.join(DECAYS)}, got {self.decay!r}"
            )
        if self.decay != "none" and not self.decay_steps:
            raise ValueError(f"learning rate: expected decay_steps for the decay {self.decay!r}")

    def at(self, step: int) -> float:
        """The learning rate of a step; the first step is 1."""
        if step <= self.warmup_steps:
            return self.base * step / self.warmup_steps
        start = max(self.decay_start, self.warmup_steps)
        if self.decay == "none" or step <= start:
            return self.base
        left = max(0.0, 1 - (step - start) / float(self.decay_steps or 1))
        if self.decay == "cosine":
            share = 0.5 * (1 - math.cos(math.pi * left))
        else:
            share = left ** (self.power if self.decay == "polynomial" else 1.0)
        return max(self.base * share, self.end)
