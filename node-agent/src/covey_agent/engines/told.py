"""What an engine prints of its own load. Pure; only the end of its output is looked at."""

import re

from covey_api.engines import EngineName

from covey_agent.engines.servers.web import LOADED

# So much of the end of the output is looked at.
TOLD_BYTES = 8 * 1024
_BYTES = re.compile(rf"^{LOADED} (\d+)$", re.MULTILINE)
# A bar of tqdm's, in vLLM's words for each kind of file.
_SHARDS = re.compile(r"Loading \S+ checkpoint shards:\s+(\d+)% Completed")
# llama.cpp prints a dot for each percent, all in one line, unless it is told to print less.
_DOTS = re.compile(r"^(\.{1,100})$", re.MULTILINE)


def parse_loaded(engine: EngineName, output: str, total_bytes: int) -> int | None:
    """How many bytes it says that it has loaded; None: it says nothing of it."""
    match engine:
        case EngineName.MLX:
            found = _BYTES.findall(output)
            return int(found[-1]) if found else None
        case EngineName.VLLM:
            found = _SHARDS.findall(output)
            return min(100, int(found[-1])) * total_bytes // 100 if found else None
        case EngineName.LLAMA_SERVER | EngineName.LLAMA_CPP:
            found = _DOTS.findall(output)
            return len(found[-1]) * total_bytes // 100 if found else None
