"""A llama-server that lists its devices late: what it had listed is believed in for a while."""

import asyncio
from pathlib import Path

import pytest
from covey_agent.engines import native
from covey_agent.engines.environments import Environment
from covey_agent.engines.native import LlamaServerSource
from covey_agent.engines.recipes import LLAMA_SERVER
from covey_api.engines import Compute, EngineName
from covey_api.node import EngineOverride

PROGRAM = """#!/bin/sh
if [ "$1" = --version ]; then echo 'version: 4711 (abc)'; exit; fi
if [ -e "$0.slow" ]; then exec sleep 60; fi
echo 'Available devices:'
echo '  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)'
"""


class NoEnvironment(Environment):
    def __init__(self) -> None:
        self.recipe = LLAMA_SERVER


def test_devices_that_are_listed_late_are_those_of_before_for_three_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llama-server"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    source = LlamaServerSource((NoEnvironment(),), {"PATH": "/bin:/usr/bin"})
    given = EngineOverride(engine=EngineName.LLAMA_SERVER, path=str(program))
    monkeypatch.setattr(native, "_DEVICES_SECONDS", 0.0)

    def look() -> tuple[set[str], set[str]]:
        lanes = asyncio.run(source.observe_lanes(given))
        return {lane.compute for lane in lanes}, {lane.version for lane in lanes}

    monkeypatch.setattr(native, "_PROBE_SECONDS", 60.0)
    seen = look()
    assert seen == ({Compute.CPU, Compute.CUDA}, {"4711 (abc)"})
    (tmp_path / "llama-server.slow").touch()
    monkeypatch.setattr(native, "_PROBE_SECONDS", 0.5)
    for _ in range(3):
        assert look() == seen
        assert source.devices
    assert look()[0] == {Compute.CPU}, "a driver that hangs for good is told"
    assert look()[0] == {Compute.CPU}
    (tmp_path / "llama-server.slow").unlink()
    monkeypatch.setattr(native, "_PROBE_SECONDS", 60.0)
    monkeypatch.setattr(native, "_SILENCE_SECONDS", 0.0)
    assert look() == seen
