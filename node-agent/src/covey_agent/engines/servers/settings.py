"""The settings of one server process."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    engine: str
    packages: Path | None
    version: bool
    model: Path
    name: str
    """The one name that requests may ask for."""
    port: int
    key_file: Path
    window: int
    """Tokens of one sequence: prompt and answer."""
    slots: int
    batch: int
    micro_batch: int
    threads: int
    cache_type: str
    cache_bytes: int
    """All that keys and values may take, those of earlier prompts too."""
    accelerator: bool
    mlock: bool
    default_chat_template: bool
    draft: Path | None
    """A checkpoint that guesses tokens."""
    rank: int
    """Of a ring; negative: it is no rank of any."""
    layers: tuple[int, ...]
    """Of a pipeline: how many each rank has, rank 0 the last ones; empty: every rank has a part of each layer."""
    step_seconds: float
    """Of a ring: how long one step may take. No step, no answer: then another rank computes nothing."""

    @property
    def is_rank(self) -> bool:
        return self.rank >= 0

    @property
    def answers(self) -> bool:
        """Whether requests come to this process: of a ring to rank 0 alone."""
        return self.rank <= 0
