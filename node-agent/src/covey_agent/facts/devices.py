"""Accelerators as the machine's own tools see them, for people and for selection; engines list what they can use.

NVIDIA is asked through `nvidia-smi`; AMD's driver answers in `/sys/class/drm`. A device without a stable id is
left out.
"""

import asyncio
import csv
import io
from pathlib import Path

from covey_api.engines import Compute
from covey_api.node import Device

from covey_agent.engines.probe import ask

NVIDIA_QUERY = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
# A driver that is stuck makes nvidia-smi hang.
PROBE_SECONDS = 2.0
_MIB = 1024 * 1024
MAX_DEVICES = 32
_AMD_VENDOR = "0x1002"


def parse_nvidia(text: str) -> tuple[Device, ...]:
    """Devices in the output of `nvidia-smi` with `NVIDIA_QUERY`. Memory that it doesn't know (`[N/A]`) is zero."""
    found: list[Device] = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != 3 or not row[0].startswith("GPU-"):
            continue
        uuid, name, total = (field.strip() for field in row)
        total_bytes = int(total) * _MIB if total.isdigit() else 0
        found.append(Device(id=uuid[:128], name=name[:128], compute=Compute.CUDA, total_bytes=total_bytes))
    return tuple(found[:MAX_DEVICES])


async def observe_nvidia(program: str | None) -> tuple[Device, ...]:
    """`program`: path of `nvidia-smi`, if there is one."""
    if program is None:
        return ()
    answer = await ask(Path(program), *NVIDIA_QUERY, environment={}, seconds=PROBE_SECONDS)
    return parse_nvidia(answer.text) if answer and answer.status == 0 else ()


def observe_amd(root: Path) -> tuple[Device, ...]:
    """AMD GPUs by PCI address, from the kernel's files below `root`."""
    found: list[Device] = []
    for device in _amd_folders(root):
        total = _read(device / "mem_info_vram_total")
        address = _pci_address(_read(device / "uevent"))
        if not address or not total.isdigit():
            continue
        name = _read(device / "product_name") or f"AMD GPU {_read(device / 'device')}"
        found.append(Device(id=f"pci-{address}"[:128], name=name[:128], compute=Compute.ROCM, total_bytes=int(total)))
    return tuple(found[:MAX_DEVICES])


async def is_any_seen(nvidia_smi: str | None, root: Path) -> bool:
    """Whether the machine's own tools see an accelerator."""
    return bool(await observe_nvidia(nvidia_smi)) or bool(await asyncio.to_thread(observe_amd, root))


def observe_set_aside(root: Path) -> tuple[int, int]:
    """(total, free) bytes that belong to the machine's only AMD GPU: a card's memory, or what the firmware set aside
    for a processor's graphics. Zeros: there is none, or several, and nobody can tell which of them an engine lists."""
    folders = _amd_folders(root)
    if len(folders) != 1:
        return 0, 0
    total, used = (_read(folders[0] / f"mem_info_vram_{what}") for what in ("total", "used"))
    if not total.isdigit() or not used.isdigit():
        return 0, 0
    return int(total), max(0, int(total) - int(used))


def observe_reach(root: Path) -> int:
    """Bytes that the machine's only AMD GPU can fill, by its driver: its own memory and what it may map of the host's
    (GTT). 0: there is none, or several, or the kernel doesn't say."""
    folders = _amd_folders(root)
    if len(folders) != 1:
        return 0
    own, mapped = (_read(folders[0] / f"mem_info_{what}_total") for what in ("vram", "gtt"))
    return int(own) + int(mapped) if own.isdigit() and mapped.isdigit() else 0


def _amd_folders(root: Path) -> list[Path]:
    """`card0-DP-1` and its like are outputs, not cards."""
    cards = sorted((root / "sys/class/drm").glob("card[0-9]*"))
    return [card / "device" for card in cards if "-" not in card.name and _read(card / "device/vendor") == _AMD_VENDOR]


def _pci_address(uevent: str) -> str:
    for line in uevent.splitlines():
        name, _, value = line.partition("=")
        if name == "PCI_SLOT_NAME":
            return value
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
