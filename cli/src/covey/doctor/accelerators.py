"""GPUs, and which engines could use them: by the same probes as the agent's."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import sys
from pathlib import Path

from covey_agent.engines.provision import NodeEngines
from covey_agent.facts.devices import NVIDIA_QUERY, observe_amd, parse_nvidia
from covey_agent.looking import explain_unusable, look_at_engines, read_kept_spec
from covey_api.engines import Compute, EngineName, Lane, LaneState
from covey_api.node import Device, NodeSpec
from covey_api.units import format_bytes

from covey.doctor.finding import Finding, Level, ok
from covey.doctor.place import Place
from covey.doctor.programs import ask_tool

_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"
# An engine that was never started reads 200 MB of libraries; one in Python imports thousands of modules.
ENGINES_SECONDS = 75.0


def look_at_gpu(_: Place) -> list[Finding]:
    if sys.platform == "darwin":
        return [ok("gpu", "Apple's GPU is the engine's own to find; see `engines`")]
    findings = [*_look_at_nvidia(Path("/")), *_look_at_amd(Path("/"))]
    return findings or [ok("gpu", "no GPU of NVIDIA or AMD is in this machine: engines run on its processor")]


def _look_at_nvidia(root: Path) -> list[Finding]:
    is_fitted = has_nvidia_card(root)
    said = ask_tool("nvidia-smi", *NVIDIA_QUERY)
    if said is None:
        if not is_fitted:
            return []
        return [
            Finding(
                "gpu",
                Level.WARNING,
                "an NVIDIA GPU is in this machine, and `nvidia-smi` isn't on PATH",
                "without its driver engines run on the processor",
                "install NVIDIA's driver",
            )
        ]
    if said.status is None:
        words = "`nvidia-smi` doesn't answer"
        consequence = "the driver is stuck: engines that use the GPU hang too"
        return [Finding("gpu", Level.BROKEN, words, consequence, "look at the kernel's log, then restart the machine")]
    devices = parse_nvidia(said.text) if said.status == 0 else ()
    if not devices:
        level = Level.BROKEN if is_fitted else Level.WARNING
        words = f"`nvidia-smi` lists no GPU: {said.text or f'it ended with {said.status}'}"
        fix = "install a driver that fits this kernel, and restart the machine after an update of it"
        return [Finding("gpu", level, words, "engines run on the processor", fix)]
    return [ok("gpu", _describe(device)) for device in devices]


def has_nvidia_card(root: Path) -> bool:
    """By the bus, which needs no driver."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        with contextlib.suppress(OSError):
            is_card = (device / "class").read_text().startswith(_DISPLAY_CLASS)
            if is_card and (device / "vendor").read_text().strip() == _NVIDIA_VENDOR:
                return True
    return False


def _look_at_amd(root: Path) -> list[Finding]:
    devices = observe_amd(root)
    closed = [path for path in (root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))) if _is_closed(path)]
    if devices and closed:
        return [
            Finding(
                "gpu",
                Level.WARNING,
                f"{_describe(devices[0])} is there, and this user may not use '{closed[0]}'",
                "engines run on the processor",
                "add the user to the groups `render` and `video`, and log in again",
            )
        ]
    return [ok("gpu", _describe(device)) for device in devices]


def _is_closed(path: Path) -> bool:
    return path.exists() and not os.access(path, os.R_OK | os.W_OK)


def _describe(device: Device) -> str:
    return f"{device.name} ({device.compute}, {format_bytes(device.total_bytes)}, {device.id})"


def look_at_engines_here(place: Place) -> list[Finding]:
    return asyncio.run(_look(place))


async def _look(place: Place) -> list[Finding]:
    spec = read_kept_spec(place.state)
    async with look_at_engines(place.cache, place.environment, place.home) as engines:
        lanes = await engines.observe_lanes(spec)
        findings = [await _look_at_lane(engines, lane, spec) for lane in lanes]
        findings += _explain_others(engines, lanes, spec)
    working = [lane for lane, found in zip(lanes, findings, strict=False) if found.level is not Level.BROKEN]
    if not working:
        words = "no engine works on this machine, and none would be installed by itself"
        fix = "put `llama-server` on PATH, or name a program in the Node's `spec.engines`"
        findings.append(Finding("engines", Level.BROKEN, words, "no model can run here", fix))
    return [*findings, *_compare_with_gpu(working)]


async def _look_at_lane(engines: NodeEngines, lane: Lane, spec: NodeSpec) -> Finding:
    name = f"{lane.engine}/{lane.compute}{f' {lane.version}' if lane.version else ''}"
    if lane.state is LaneState.INSTALLABLE:
        missing = _missing_library(lane)
        if missing:
            words = f"{name} can be installed, and '{missing}' isn't on this machine"
            fix = "install it: `apt-get install libgomp1` (Debian, Ubuntu), `dnf install libgomp` (Fedora)"
            return Finding("engines", Level.BROKEN, words, "the engine will not start", fix)
        return ok("engines", f"{name} is installed by itself with the first model that wants it")
    why = await explain_unusable(engines, lane.engine, spec)
    if why:
        return Finding("engines", Level.BROKEN, f"{name} doesn't start: {why}", "no model can run on it", "as it says")
    return ok("engines", f"{name} works")


def _missing_library(lane: Lane) -> str:
    """What the managed llama-server needs of the system, and its wheel doesn't bring."""
    if lane.engine is not EngineName.LLAMA_SERVER:
        return ""
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        return "libgomp.so.1"
    return ""


def _explain_others(engines: NodeEngines, lanes: tuple[Lane, ...], spec: NodeSpec) -> list[Finding]:
    """Engines that aren't offered: broken only where the Node's spec names them, for then somebody counts on them."""
    named = {each.engine for each in spec.engines if not each.disabled}
    offered = {lane.engine for lane in lanes}
    found: list[Finding] = []
    for engine, why in sorted(engines.complaints.items()):
        if engine in named:
            words = f"{engine} is named in the Node's `spec.engines` and can't be used: {why}"
            found.append(Finding("engines", Level.BROKEN, words, "no model can run on it", "as it says"))
        elif engine not in offered:
            found.append(ok("engines", f"{engine} isn't offered: {why}"))
    return found


def _compare_with_gpu(lanes: list[Lane]) -> list[Finding]:
    """A GPU that the driver sees and no engine does. What isn't installed yet can't be asked."""
    is_installed = any(lane.state is LaneState.INSTALLED for lane in lanes)
    if not is_installed or any(lane.compute is not Compute.CPU for lane in lanes) or shutil.which("nvidia-smi") is None:
        return []
    said = ask_tool("nvidia-smi", *NVIDIA_QUERY)
    devices = parse_nvidia(said.text) if said and said.status == 0 else ()
    if not devices:
        return []
    return [
        Finding(
            "engines",
            Level.WARNING,
            f"the driver lists {_describe(devices[0])}, and no installed engine can use it",
            "models run on the processor",
            "install an engine that is built for it, or the Vulkan driver of the GPU",
        )
    ]
