"""The system's tools as programs: asked until they have answered once, and given up when they hang."""

import asyncio
from pathlib import Path

import psutil
from covey_agent.facts.tools import SystemTools
from covey_api.engines import Compute
from kit.processes import wait_for


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)


def find_in(folder: Path, name: str) -> str | None:
    return str(folder / name) if (folder / name).exists() else None


def test_a_tool_is_asked_until_it_has_answered_once_and_names_what_the_kernel_does_not(tmp_path: Path) -> None:
    card = tmp_path / "sys/class/drm/card1/device"
    card.mkdir(parents=True)
    for name, content in {
        "vendor": "0x1002",
        "device": "0x1586",
        "uevent": "PCI_SLOT_NAME=0000:c3:00.0",
        "mem_info_vram_total": "4294967296",
    }.items():
        (card / name).write_text(content)
    tools = SystemTools(lambda name: find_in(tmp_path, name), tmp_path)

    async def names() -> list[str]:
        return [device.name for device in await tools.observe_devices()]

    async def whole() -> None:
        assert await names() == ["AMD GPU 0x1586"]
        program(tmp_path, "rocm-smi", "exit 1")
        assert await names() == ["AMD GPU 0x1586"]
        answer = '{"card0": {"Device Name": "Strix Halo", "PCI Bus": "0000:C3:00.0"}}'
        program(tmp_path, "rocm-smi", f"echo asked >> {tmp_path}/asked; echo '{answer}'")
        assert await names() == ["Strix Halo"]
        assert await names() == ["Strix Halo"]
        assert (tmp_path / "asked").read_text() == "asked\n"

    asyncio.run(whole())


def test_a_tool_that_hangs_is_given_up_and_ends(tmp_path: Path) -> None:
    program(tmp_path, "vulkaninfo", f"echo $$ > {tmp_path}/pid; exec sleep 3600")
    program(tmp_path, "system_profiler", """echo '{"SPDisplaysDataType": [{"_name": "Apple M4"}]}'""")
    (device,) = asyncio.run(SystemTools(lambda name: find_in(tmp_path, name), tmp_path).observe_devices())
    assert device.compute == Compute.METAL
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not psutil.pid_exists(pid), "it is gone")
