"""Lanes from what `llama-server --list-devices` prints."""

from pathlib import Path

import pytest
from covey_agent.engines.lanes import device_pools, parse_devices, plan_lanes
from covey_api.companion import CompanionRole
from covey_api.engines import Compute, LaneState
from covey_api.node import MemoryPool

MIB = 1024 * 1024

NONE = "Available devices:\n  (none)\n"
VULKAN = """ggml_vulkan: Found 3 Vulkan devices:
ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: 1 | bf16: 0 | warp size: 64
ggml_vulkan: 1 = AMD Radeon 780M (RADV PHOENIX) (radv) | uma: 1 | fp16: 1 | bf16: 0 | warp size: 64
ggml_vulkan: 2 = llvmpipe (LLVM 15.0.6, 256 bits) (llvmpipe) | uma: 0 | fp16: 1 | bf16: 0 | warp size: 8
Available devices:
  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 23980 MiB free)
  Vulkan1: AMD Radeon 780M (RADV PHOENIX) (32000 MiB, 31000 MiB free)
  Vulkan2: llvmpipe (LLVM 15.0.6, 256 bits) (24000 MiB, 24000 MiB free)
"""
CUDA = """ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
Available devices:
  CUDA0: NVIDIA GeForce RTX 3090 (24135 MiB, 23871 MiB free)
  CUDA1: NVIDIA GeForce RTX 3090 (24135 MiB, 12 MiB free)
  RPC0: 10.0.0.2:50052 (8000 MiB, 8000 MiB free)
"""
METAL = "Available devices:\n  MTL0: Apple M1 Max (49152 MiB, 49151 MiB free)\n  BLAS: Accelerate (0 MiB, 0 MiB free)\n"


def test_no_device_leaves_the_cpu_lane() -> None:
    assert parse_devices(NONE) == ()
    lanes = plan_lanes("b1", "d", LaneState.INSTALLED, ())
    assert [(lane.compute, lane.pool) for lane in lanes] == [(Compute.CPU, "Host")]
    assert set(lanes[0].companions) == set(CompanionRole)


def test_integrated_and_software_devices_are_left_out() -> None:
    (device,) = parse_devices(VULKAN)
    assert (device.name, device.description) == ("Vulkan0", "AMD Radeon RX 7900 XTX (RADV NAVI31)")
    assert (device.total_bytes, device.available_bytes) == (24560 * MIB, 23980 * MIB)


def test_each_device_has_a_lane_and_a_pool_of_its_name() -> None:
    devices = parse_devices(CUDA)
    lanes = plan_lanes("b1", "", LaneState.INSTALLED, devices)
    assert [(lane.compute, lane.pool) for lane in lanes] == [
        (Compute.CUDA, "CUDA0"),
        (Compute.CUDA, "CUDA1"),
        (Compute.CPU, "Host"),
    ]
    assert device_pools(devices) == (
        MemoryPool(name="CUDA0", total_bytes=24135 * MIB),
        MemoryPool(name="CUDA1", total_bytes=24135 * MIB),
    )


def test_metal_fills_the_hosts_memory() -> None:
    devices = parse_devices(METAL)
    assert [(device.compute, device.pool) for device in devices] == [(Compute.METAL, "Host")]
    assert device_pools(devices) == ()


def test_what_is_no_list_gives_no_device() -> None:
    assert parse_devices("error: unknown argument: --list-devices\n  Vulkan0: x (y MiB, z MiB free)") == ()


def read_output(name: str) -> str:
    """What a real tool printed, reduced to what is parsed; its origin is in its first lines."""
    text = (Path(__file__).parent / "outputs" / name).read_text()
    assert "# origin" in text
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# "))


@pytest.mark.parametrize(
    ("output", "compute", "total_mib"),
    [("list-devices-gb10.txt", Compute.CUDA, 124609), ("list-devices-strix-halo-rocm.txt", Compute.ROCM, 120000)],
)
def test_devices_that_fill_the_machines_own_memory_are_lanes_of_the_hosts_pool(
    output: str, compute: Compute, total_mib: int
) -> None:
    (device,) = parse_devices(read_output(output))
    assert (device.compute, device.pool, device.total_bytes) == (compute, "Host", total_mib * MIB)
    lanes = plan_lanes("b1", "", LaneState.INSTALLED, (device,))
    assert [(lane.compute, lane.pool) for lane in lanes] == [(compute, "Host"), (Compute.CPU, "Host")]
    assert device_pools((device,)) == ()


def test_graphics_that_may_fill_a_part_of_the_hosts_memory_are_a_lane_with_a_limit() -> None:
    """By default the kernel lets them map half of it (GTT)."""
    (device,) = parse_devices(read_output("list-devices-strix-halo-rocm.txt"), reach=100 * 1024 * MIB)
    lanes = plan_lanes("b1", "", LaneState.INSTALLED, (device,))
    assert [(lane.compute, lane.pool, lane.limit_bytes) for lane in lanes] == [
        (Compute.ROCM, "Host", 100 * 1024 * MIB),
        (Compute.CPU, "Host", 0),
    ]
    (chip,) = parse_devices(read_output("list-devices-gb10.txt"), reach=100 * 1024 * MIB)
    assert chip.limit_bytes == 0, "what AMD's driver says is not of another maker's device"
    (card,) = parse_devices("  ROCm0: AMD Radeon PRO W7900 (8176 MiB, 8000 MiB free)\n", reach=100 * MIB)
    assert (card.pool, card.limit_bytes) == ("ROCm0", 0)


def test_graphics_on_the_chip_are_left_out_beside_a_card_of_the_same_compute() -> None:
    listed = (
        "  Device 0: AMD Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32\n"
        "  Device 1: AMD Radeon Graphics, gfx1036 (0x1036), VMM: no, Wave Size: 32\n"
        "Available devices:\n"
        "  ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24500 MiB free)\n"
        "  ROCm1: AMD Radeon Graphics (31861 MiB, 31000 MiB free)\n"
    )
    assert [device.pool for device in parse_devices(listed)] == ["ROCm0"]


@pytest.mark.parametrize("name", ["AMD Radeon 780M Graphics", "AMD Radeon(TM) 8060S Graphics", "NVIDIA Thor"])
def test_a_chips_graphics_are_known_by_name_where_no_architecture_is_told(name: str) -> None:
    prefix = "CUDA0" if name.startswith("NVIDIA") else "ROCm0"
    (device,) = parse_devices(f"Available devices:\n  {prefix}: {name} (64038 MiB, 64034 MiB free)\n")
    assert device.pool == "Host"


@pytest.mark.parametrize("name", ["AMD Radeon PRO W7900", "AMD Radeon RX 7600M XT", "AMD Instinct MI300X"])
def test_a_card_is_not_taken_for_a_chips_graphics(name: str) -> None:
    (device,) = parse_devices(f"Available devices:\n  ROCm0: {name} (8176 MiB, 8000 MiB free)\n")
    assert device.pool == "ROCm0"


@pytest.mark.parametrize(
    ("total_mib", "set_aside_mib", "pool", "pool_mib"),
    [
        (120000, 4096, "Host", 120000),
        (131072, 512, "Host", 131072),
        (98304, 98304, "ROCm0", 98304),
        (65536, 65536, "ROCm0", 65536),
        (512, 512, "ROCm0", 512),
        (100000, 65536, "ROCm0", 65536),
    ],
    ids=["as it comes", "all of it by the kernel", "96 of 128", "64 of 128", "an old kernel", "what is beyond it"],
)
def test_what_the_firmware_set_aside_for_graphics_is_a_pool_of_its_own(
    total_mib: int, set_aside_mib: int, pool: str, pool_mib: int
) -> None:
    listed = read_output("list-devices-strix-halo-rocm.txt").replace("(120000 MiB", f"({total_mib} MiB")
    (device,) = parse_devices(listed, (set_aside_mib * MIB, 100 * MIB))
    assert (device.pool, device.total_bytes) == (pool, pool_mib * MIB)
    assert device.available_bytes == (124704 if pool == "Host" else 100) * MIB


def test_what_amds_driver_set_aside_makes_no_pool_of_another_makers_device() -> None:
    (device,) = parse_devices(read_output("list-devices-gb10.txt"), (96 * 1024 * MIB, 0))
    assert device.pool == "Host"


def test_vulkan_on_strix_halo_is_told_to_share_the_hosts_memory() -> None:
    """The list that follows is ours, for neither origin shows it."""
    listed = "Available devices:\n" + "".join(f"  Vulkan{n}: x (65000 MiB, 64000 MiB free)\n" for n in (0, 1))
    assert parse_devices(read_output("list-devices-strix-halo-vulkan.txt") + listed) == ()
