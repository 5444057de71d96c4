"""Accelerators as tools of the system tell them, from what real ones printed."""

from pathlib import Path

import pytest
from covey_agent.facts.tools import parse_rocm_names, parse_system_profiler, parse_vulkaninfo
from covey_api.engines import Compute


def read_output(name: str) -> str:
    """What a real tool printed, reduced to what is parsed; its origin is in its first lines."""
    text = (Path(__file__).parent / "outputs" / name).read_text()
    assert "# origin" in text
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# "))


@pytest.mark.parametrize(("output", "name"), [("m4", "Apple M4"), ("m1", "Apple M1")])
def test_a_macs_gpu_has_its_name_and_no_memory_of_its_own(output: str, name: str) -> None:
    (device,) = parse_system_profiler(read_output(f"system-profiler-{output}.json"))
    assert (device.id, device.name, device.compute, device.total_bytes) == ("metal-0", name, Compute.METAL, 0)


def test_amds_names_are_by_the_kernels_address() -> None:
    warned = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
    assert parse_rocm_names(warned + read_output("rocm-smi-780m.json")) == {"0000:c4:00.0": "Phoenix3"}
    assert parse_rocm_names(read_output("rocm-smi-7900xt.json")) == {}, "nobody can tell which one it is"


@pytest.mark.parametrize("output", ["rx6600xt", "x1-85", "rpl-s"])
def test_what_others_tell_and_what_is_on_a_chip_is_no_card_of_vulkans(output: str) -> None:
    assert parse_vulkaninfo(read_output(f"vulkaninfo-{output}.txt")) == ()


def test_a_card_of_another_maker_is_vulkans() -> None:
    """The outputs are real ones, with another maker, or another type: no origin shows such a card whole."""
    arc = read_output("vulkaninfo-rx6600xt.txt").replace("0x1002", "0x8086")
    other = read_output("vulkaninfo-x1-85.txt").replace("INTEGRATED", "DISCRETE").replace("GPU0:", "GPU1:")
    found = parse_vulkaninfo(arc + other)
    assert [(device.id, device.name) for device in found] == [
        ("vulkan-00000000-0a00-0000-0000-000000000000", "AMD Radeon RX 6600 XT"),
        ("vulkan-43510000-0600-0000-12c5-6000140012c5", "Qualcomm(R) Adreno(TM) X1-85 GPU"),
    ]
    assert {device.compute for device in found} == {Compute.VULKAN}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"SPDisplaysDataType": 3}', '{"card0": 1}', "GPU0:\n", "no such device"]
)
def test_noise_is_no_device(text: str) -> None:
    assert parse_system_profiler(text) == ()
    assert parse_rocm_names(text) == {}
    assert parse_vulkaninfo(text) == ()
