"""Facts from the kernel's files and from tools, on fixtures; and of the machine that runs the test."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest
from covey_agent.engines.lanes import EngineDevice
from covey_agent.facts.devices import observe_amd, observe_reach, observe_set_aside, parse_nvidia
from covey_agent.facts.host import observe_cpu_cores, observe_cpu_model, observe_memory_bytes, observe_os_version
from covey_agent.facts.machine import MachineFacts
from covey_api.engines import Compute
from covey_api.messages import PoolReading
from covey_api.node import MemoryPool

MIB = 1024 * 1024


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_memory_and_cores_are_those_of_the_control_group(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/agent.service\n",
            "sys/fs/cgroup/user.slice/agent.service/memory.max": "max\n",
            "sys/fs/cgroup/user.slice/agent.service/memory.current": "1000\n",
            "sys/fs/cgroup/user.slice/memory.max": f"{512 * MIB}\n",
            "sys/fs/cgroup/user.slice/memory.current": f"{300 * MIB}\n",
            "sys/fs/cgroup/user.slice/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
            "sys/fs/cgroup/user.slice/cpu.max": "100000 100000\n",
        },
    )
    assert observe_memory_bytes(root) == (512 * MIB, 312 * MIB)
    assert observe_cpu_cores(root) == 1


def test_memory_is_that_of_a_version_one_group(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{256 * MIB}\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{200 * MIB}\n",
            "sys/fs/cgroup/memory/box/memory.stat": f"total_inactive_file {50 * MIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert observe_memory_bytes(root) == (256 * MIB, 106 * MIB)


def test_without_a_group_the_machine_counts(tmp_path: Path) -> None:
    total_bytes, available_bytes = observe_memory_bytes(tmp_path)
    assert total_bytes == psutil.virtual_memory().total
    assert 0 < available_bytes <= total_bytes
    assert observe_cpu_cores(tmp_path) >= 1


def test_names_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD Ryzen 9\n",
        },
    )
    assert observe_os_version(root) == "Debian GNU/Linux 12 (bookworm)"
    assert observe_cpu_model(root) == "AMD Ryzen 9"


def test_nvidia_devices_are_read_and_noise_is_not() -> None:
    text = (
        "GPU-5b0e0c5a-0000-1111-2222-333344445555, NVIDIA H200, 143771\n"
        "GPU-6b0e0c5a-0000-1111-2222-333344445555, NVIDIA GB10, [N/A]\n"
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n\n"
    )
    first, second = parse_nvidia(text)
    assert (first.name, first.compute, first.total_bytes) == ("NVIDIA H200", Compute.CUDA, 143771 * MIB)
    assert (second.name, second.total_bytes) == ("NVIDIA GB10", 0)


def read_output(name: str) -> list[str]:
    """Lines that a real tool printed; their origin is in the file's first lines."""
    lines = (Path(__file__).parent / "outputs" / name).read_text().splitlines()
    assert any(line.startswith("# origin") for line in lines)
    return [line for line in lines if not line.startswith("# ")]


def test_cards_and_a_chip_without_memory_of_its_own_are_read_as_nvidia_tells_them() -> None:
    cards = parse_nvidia("\n".join(read_output("nvidia-smi-two-cards.csv")))
    assert [(card.name, card.total_bytes) for card in cards] == [("Quadro RTX 4000", 8192 * MIB)] * 2
    assert len({card.id for card in cards}) == 2
    (chip,) = parse_nvidia("\n".join(read_output("nvidia-smi-gb10.csv")))
    assert (chip.name, chip.compute, chip.total_bytes) == ("NVIDIA GB10", Compute.CUDA, 0)


def test_strix_halo_is_read_from_its_kernels_files(tmp_path: Path) -> None:
    files = dict(line.split(" ", 1) for line in read_output("sys-strix-halo.txt"))
    (device,) = observe_amd(write(tmp_path, files))
    assert (device.id, device.name) == ("pci-0000:c3:00.0", "AMD GPU 0x1586")
    assert (device.compute, device.total_bytes) == (Compute.ROCM, 4096 * MIB)
    assert observe_set_aside(tmp_path) == (0, 0), "the origin doesn't show what of it is used"
    write(tmp_path, {"sys/class/drm/card1/device/mem_info_vram_used": f"{96 * MIB}\n"})
    assert observe_set_aside(tmp_path) == (4096 * MIB, 4000 * MIB)
    assert observe_reach(tmp_path) == (4 + 96) * 1024 * MIB
    card = "sys/class/drm/card7/device"
    other = {"vendor": "0x1002\n", "uevent": "PCI_SLOT_NAME=0000:03:00.0\n", "mem_info_vram_total": "25753026560\n"}
    write(tmp_path, {f"{card}/{name}": content for name, content in other.items()})
    assert observe_set_aside(tmp_path) == (0, 0), "which of the two is listed can't be told"
    assert observe_reach(tmp_path) == 0


def test_amd_devices_are_read_by_their_address(tmp_path: Path) -> None:
    card = "sys/class/drm/card1/device"
    root = write(
        tmp_path,
        {
            f"{card}/vendor": "0x1002\n",
            f"{card}/device": "0x744c\n",
            f"{card}/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n",
            f"{card}/mem_info_vram_total": "25753026560\n",
            "sys/class/drm/card1-DP-1/status": "connected\n",
            "sys/class/drm/card0/device/vendor": "0x8086\n",
        },
    )
    (device,) = observe_amd(root)
    assert (device.id, device.name, device.total_bytes) == ("pci-0000:03:00.0", "AMD GPU 0x744c", 25753026560)


def test_facts_of_this_machine_are_whole(tmp_path: Path) -> None:
    device = EngineDevice("CUDA0", "NVIDIA", Compute.CUDA, "CUDA0", 8, 5)
    facts = MachineFacts(tmp_path, lambda: (device,))
    found = asyncio.run(facts.observe_facts())
    assert found.pools[1:] == (MemoryPool(name="CUDA0", total_bytes=8),)
    assert found.pools[0].name == "Host"
    assert found.pools[0].total_bytes > 0
    assert found.cpu_cores >= 1
    assert found.architecture == os.uname().machine
    assert found.disk_total_bytes > 0
    readings = facts.observe_readings()
    assert readings[0].available_bytes <= found.pools[0].total_bytes
    assert readings[1] == PoolReading(name="CUDA0", available_bytes=5)
    assert facts.observe_shared_devices() == frozenset()


def test_device_that_fills_the_hosts_memory_has_no_pool_and_no_reading(tmp_path: Path) -> None:
    device = EngineDevice("ROCm0", "AMD Radeon Graphics", Compute.ROCM, "Host", 8, 5)
    facts = MachineFacts(tmp_path, lambda: (device,))
    assert [pool.name for pool in asyncio.run(facts.observe_facts()).pools] == ["Host"]
    assert [reading.name for reading in facts.observe_readings()] == ["Host"]
    assert facts.observe_shared_devices() == {"ROCm0"}


@pytest.mark.parametrize("content", ["", "\0\0\0", "max max max", "-1 0"])
def test_nonsense_in_the_kernels_files_is_left_out(tmp_path: Path, content: str) -> None:
    names = ("proc/self/cgroup", "proc/cpuinfo", "etc/os-release")
    root = write(tmp_path, dict.fromkeys(names, content))
    write(root, {"sys/fs/cgroup/cpu.max": content, "sys/fs/cgroup/memory.max": content})
    assert observe_cpu_cores(root) >= 1
    assert observe_memory_bytes(root)[0] > 0
    assert observe_amd(root) == ()
