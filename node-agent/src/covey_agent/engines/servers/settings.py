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
