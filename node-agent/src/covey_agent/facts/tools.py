"""What tools of the system tell of accelerators that neither `nvidia-smi` nor the kernel names. Parsers are pure.

| tool | what for |
|---|---|
| `system_profiler` (macOS) | Apple's GPU: it has no memory of its own |
| `rocm-smi` | names of AMD's devices where the kernel has none (`AMD GPU 0x1586`) |
| `vulkaninfo` | cards of other makers: only Vulkan reaches them |

Each takes a good part of a second of a core, and tells the same for as long as the machine runs: it is asked until it
has answered once, and given up after two seconds each time.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from covey_api.engines import Compute
from covey_api.node import Device

from covey_agent.engines.probe import ask
from covey_agent.facts.devices import MAX_DEVICES, PROBE_SECONDS, observe_amd

SYSTEM_PROFILER = ("system_profiler", "SPDisplaysDataType", "-json")
ROCM_SMI = ("rocm-smi", "--showproductname", "--showbus", "--json")
VULKANINFO = ("vulkaninfo", "--summary")

# Until macOS 12 the name of a string that the System Report translates.
_KEYED_NAME = re.compile(r"kHW_Apple(\w+)Item")
# `GPU0:`; what follows are lines `<tab>deviceName         = AMD Radeon RX 6600 XT`, and lines of a driver's own.
_VULKAN_DEVICE = re.compile(r"^GPU\d+:$", re.MULTILINE)
_VULKAN_FIELD = re.compile(r"^[ \t]+(\w+)\s+= (.*)$", re.MULTILINE)
# Makers whose own tools tell more of their devices: NVIDIA, AMD.
_KNOWN_OTHERWISE = frozenset({"0x10de", "0x1002"})


def parse_system_profiler(text: str) -> tuple[Device, ...]:
    """Apple's GPUs. Others of a Mac are reached by no engine of ours."""
    names = [_name_of(entry) for entry in _entries(text, "SPDisplaysDataType")]
    apples = [name for name in names if name.startswith("Apple ")]
    return tuple(
        Device(id=f"metal-{number}", name=name[:128], compute=Compute.METAL)
        for number, name in enumerate(apples[:MAX_DEVICES])
    )


def _name_of(entry: dict[str, Any]) -> str:
    name = str(entry.get("sppci_model") or entry.get("_name") or "")
    keyed = _KEYED_NAME.fullmatch(name)
    return f"Apple {keyed.group(1)}" if keyed else name


def parse_rocm_names(text: str) -> dict[str, str]:
    """By PCI address, as the kernel writes it."""
    found: dict[str, str] = {}
    for card in _objects(text):
        name = next((str(card[key]) for key in ("Card Series", "Card series", "Device Name") if card.get(key)), "")
        if name and name != "N/A" and "PCI Bus" in card:
            found[str(card["PCI Bus"]).lower()] = name
    return found


def parse_vulkaninfo(text: str) -> tuple[Device, ...]:
    """Cards of makers that have no tool of their own here; what is on a processor's chip is no card."""
    found: list[Device] = []
    for block in _VULKAN_DEVICE.split(text)[1:]:
        fields = dict(_VULKAN_FIELD.findall(block))
        is_card = fields.get("deviceType") == "PHYSICAL_DEVICE_TYPE_DISCRETE_GPU"
        if is_card and fields.get("vendorID") not in _KNOWN_OTHERWISE and fields.get("deviceUUID"):
            identity, name = f"vulkan-{fields['deviceUUID']}", fields.get("deviceName", "")
            found.append(Device(id=identity[:128], name=name[:128], compute=Compute.VULKAN))
    return tuple(found[:MAX_DEVICES])


def _entries(text: str, key: str) -> list[dict[str, Any]]:
    listed: object = _parse(text).get(key)
    every = cast(list[object], listed) if isinstance(listed, list) else []
    return [cast(dict[str, Any], each) for each in every if isinstance(each, dict)]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    return (cast(dict[str, Any], each) for each in _parse(text).values() if isinstance(each, dict))


def _parse(text: str) -> dict[str, Any]:
    """The JSON object in an output, after warnings of a driver; empty where there is none."""
    try:
        document: object = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return {}
    return cast(dict[str, Any], document) if isinstance(document, dict) else {}


class SystemTools:
    """`find`: the path of a program, if it is here. Each answer is kept."""

    def __init__(self, find: Callable[[str], str | None], root: Path) -> None:
        self._find = find
        self._root = root
        self._answers: dict[tuple[str, ...], str] = {}

    async def observe_devices(self) -> tuple[Device, ...]:
        """AMD's by the kernel, with names; Apple's; cards of other makers."""
        amd = await asyncio.to_thread(observe_amd, self._root)
        apple = parse_system_profiler(await self._ask(SYSTEM_PROFILER))
        return (*await self._name(amd), *apple, *parse_vulkaninfo(await self._ask(VULKANINFO)))

    async def _name(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        if not any(device.name.startswith("AMD GPU 0x") for device in devices):
            return devices
        names = parse_rocm_names(await self._ask(ROCM_SMI))
        return tuple(
            device.model_copy(update={"name": names.get(device.id.removeprefix("pci-"), device.name)[:128]})
            for device in devices
        )

    async def _ask(self, command: tuple[str, ...]) -> str:
        if command in self._answers:
            return self._answers[command]
        program = self._find(command[0])
        if program is None:
            return ""
        answer = await ask(Path(program), *command[1:], environment={}, seconds=PROBE_SECONDS)
        if answer is None or answer.status != 0:
            return ""
        self._answers[command] = answer.text
        return answer.text
