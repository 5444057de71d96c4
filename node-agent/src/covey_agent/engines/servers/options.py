"""What a server of ours is started with, and which one it is. Every number comes from the Instance's stamp."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from covey_agent.engines.servers import llama_cpp_server, mlx_server
from covey_agent.engines.servers.settings import Settings
from covey_agent.engines.servers.web import report_failure

# A step of a ring is one of reading a part of each prompt or one token, and ten a second where nothing is asked.
STEP_SECONDS = 60.0

VERSIONS: dict[str, Callable[[], str]] = {
    "LlamaCpp": llama_cpp_server.observe_version,
    "Mlx": mlx_server.observe_version,
}
SERVERS: dict[str, Callable[[Settings], int]] = {"LlamaCpp": llama_cpp_server.serve, "Mlx": mlx_server.serve}


def parse_settings(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="serve.py", allow_abbrev=False)
    parser.add_argument("engine", choices=sorted(SERVERS))
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--model", type=Path, default=Path())
    parser.add_argument("--name", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key-file", type=Path, default=Path())
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--micro-batch", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache-type", choices=["F16", "Q8_0", "Q4_0"], default="F16")
    parser.add_argument("--cache-bytes", type=int, default=0)
    parser.add_argument("--accelerator", action="store_true")
    parser.add_argument("--mlock", action="store_true")
    parser.add_argument("--default-chat-template", action="store_true")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--layers", type=_parse_layers, default=())
    parser.add_argument("--step-seconds", type=float, default=STEP_SECONDS)
    found = parser.parse_args(arguments)
    return Settings(**vars(found))


def _parse_layers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def main(arguments: list[str]) -> int:
    settings = parse_settings(arguments)
    if settings.packages is not None:
        sys.path.insert(0, str(settings.packages))
    if settings.version:
        print(f"version: {VERSIONS[settings.engine]()}")
        return 0
    try:
        return SERVERS[settings.engine](settings)
    except Exception as error:  # whatever ends a server is said in one line that the adapter reads
        return report_failure(error)
