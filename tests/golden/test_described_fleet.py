"""`covey plan --fleet`: a plan on machines that are only described, with nothing running."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import Golden
from covey.commands.plan import plan
from covey.errors import CommandError, ExitCode
from kit.gguf import Shape, build_model
from kit.planning import large_geometry

HEAD = "apiVersion: covey.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\n"
FLEET = "---\n".join(
    (
        HEAD.format(kind="Node", name="mac") + "machine: {memory: 64Gi, devices: [{compute: Metal}]}\n"
        "spec: {reserve: {memory: 8Gi}, taints: [{key: owner, value: ann}]}\n",
        HEAD.format(kind="Node", name="gpu") + "machine: {memory: 32Gi, devices: [{compute: Cuda, memory: 24Gi}]}\n",
        HEAD.format(kind="Node", name="pi") + "status:\n"
        "  facts: {os: linux, architecture: arm64, cpuCores: 4, pools: [{name: Host, totalBytes: 8589934592}]}\n"
        "  lanes: [{engine: LlamaServer, compute: Cpu, state: Installable}]\n",
    )
)


def model(geometry: str = "", source: str = "file:///models/m.gguf") -> str:
    variants = f"  variants: [{{name: v, format: Gguf, source: '{source}', engines: [LlamaServer]}}]\n"
    return HEAD.format(kind="Model", name="m") + f"spec:\n  tasks: [Chat]\n{geometry}{variants}"


def placement(wish: str) -> str:
    return HEAD.format(kind="Placement", name="p") + f"spec: {{modelRef: {{name: m}}, {wish}}}\n"


KNOWN = model(f"  geometry: {json.dumps(large_geometry().to_wire())}\n")


def run(folder: Path, fleet: str, *documents: str, output: str = "text") -> tuple[int, str]:
    (folder / "fleet.yaml").write_text(fleet)
    (folder / "set.yaml").write_text("---\n".join(documents))
    filenames = ["-f", str(folder / "set.yaml")] if documents else []
    result = CliRunner().invoke(plan, ["--fleet", str(folder / "fleet.yaml"), *filenames, "-o", output])
    if isinstance(result.exception, CommandError):
        raise result.exception
    return result.exit_code, result.output


def test_replicas_go_to_the_machines_that_are_described(golden: Golden, tmp_path: Path) -> None:
    wish = placement("replicas: 2, context: {tokens: 16384}, nodes: {tolerations: [{key: owner, operator: Exists}]}")
    code, text = run(tmp_path, FLEET, KNOWN, wish)
    assert code == 0
    golden("plan/described-fleet.txt", text)
    assert run(tmp_path, FLEET + "---\n" + KNOWN + "---\n" + wish) == (0, text), "all in one file is the same"
    code, answer = run(tmp_path, FLEET, KNOWN, wish, output="json")
    assert code == 0
    golden("plan/described-fleet.json", answer)


def test_a_described_mac_runs_what_an_agent_there_would_offer(tmp_path: Path) -> None:
    """Two of 12.4 GiB of weights, which count 1.3 times on Metal, in three quarters of 32 GiB: one fits."""
    geometry = large_geometry(weights_bytes=int(12.4 * 2**30)).to_wire()
    mlx = (
        HEAD.format(kind="Model", name="m") + f"spec:\n  tasks: [Chat]\n  geometry: {json.dumps(geometry)}\n"
        "  variants: [{name: v, format: Mlx, source: 'file:///models/m', engines: [Mlx]}]\n"
    )
    mac = HEAD.format(kind="Node", name="mac") + "machine: {memory: 32Gi, devices: [{compute: Metal}]}\n"
    code, text = run(tmp_path, mac, mlx, placement("replicas: 2, concurrency: 1, context: {tokens: 4096}"))
    assert code == 1
    assert "instance/p-0 of placement/p: node 'mac'" in text
    assert "Mlx/Metal" in text
    assert "pool 'Host': 32.0 GiB in total, 8.0 GiB kept back" in text
    assert "1 of 2 replicas" in text


def test_as_many_as_fit_are_placed_and_the_rest_is_refused_with_exit_code_1(golden: Golden, tmp_path: Path) -> None:
    code, text = run(tmp_path, FLEET, KNOWN, placement("replicas: 3, context: {tokens: 32768}"))
    assert code == 1
    golden("plan/described-fleet-too-small.txt", text)
    code, answer = run(tmp_path, FLEET, KNOWN, placement("replicas: 3, context: {tokens: 32768}"), output="json")
    found = json.loads(answer)
    assert code == 1
    assert [each["members"][0]["node"] for each in found["comes"]] == ["gpu", "gpu"]
    assert [each["name"] for each in found["stalls"]] == ["p"]
    assert found["stalls"][0]["shortBytes"] > 0


def test_a_placement_that_sleeps_says_whether_its_first_replica_would_fit(golden: Golden, tmp_path: Path) -> None:
    sleeping = "scaling: {{min: 0}}, context: {{tokens: {tokens}}}"
    code, text = run(tmp_path, FLEET, KNOWN, placement(sleeping.format(tokens=16384)))
    assert code == 0
    golden("plan/described-fleet-asleep.txt", text)
    code, answer = run(tmp_path, FLEET, KNOWN, placement(sleeping.format(tokens=16384)), output="json")
    (found,) = json.loads(answer)["sleeps"]
    assert (code, found["fits"], found["node"], found["contextTokens"]) == (0, True, "gpu", 16384)
    assert found["pools"][0]["bytes"] > large_geometry().weights_bytes
    code, text = run(tmp_path, FLEET, KNOWN, placement(sleeping.format(tokens=131072) + ", concurrency: 16"))
    assert code == 1
    golden("plan/described-fleet-asleep-too-small.txt", text)


def test_a_described_mac_offers_what_its_agent_would(tmp_path: Path) -> None:
    mlx = KNOWN.replace("format: Gguf", "format: Mlx").replace("[LlamaServer]", "[Mlx]")
    mac = HEAD.format(kind="Node", name="mac") + "machine: {memory: 64Gi, devices: [{compute: Metal}]}\n"
    code, text = run(tmp_path, mac, mlx, placement("replicas: 1"))
    assert (code, "node 'mac'" in text, "lane Mlx/Metal" in text) == (0, True, True)
    without = mac + "spec: {engines: [{engine: Mlx, disabled: true}]}\n"
    code, text = run(tmp_path, without, mlx, placement("replicas: 1"))
    assert (code, "NoUsableEngine" in text) == (1, True)
    pc = HEAD.format(kind="Node", name="pc") + "machine: {memory: 64Gi}\n"
    assert run(tmp_path, pc, mlx, placement("replicas: 1"))[0] == 1, "there it is offered only where it is named"
    code, text = run(tmp_path, pc + "spec: {engines: [{engine: Mlx}]}\n", mlx, placement("replicas: 1"))
    assert (code, "lane Mlx/Cpu" in text) == (0, True)


def test_a_model_is_shared_among_the_devices_of_one_machine_where_it_fits_on_none(
    golden: Golden, tmp_path: Path
) -> None:
    fleet = HEAD.format(kind="Node", name="two") + (
        "machine: {memory: 32Gi, devices: [{compute: Cuda, memory: 8Gi}, {compute: Cuda, memory: 6Gi}]}\n"
        "spec: {reserve: {memory: 28Gi}}\n"
    )
    code, text = run(tmp_path, fleet, KNOWN, placement("replicas: 2, context: {tokens: 8192}"))
    assert code == 1
    golden("plan/described-fleet-two-devices.txt", text)


def test_graphics_on_the_chip_fill_no_more_than_their_driver_allows(tmp_path: Path) -> None:
    lanes: dict[str, str] = {}
    for limit in ("16Gi", "256Mi"):
        fleet = HEAD.format(kind="Node", name="halo") + (
            f"machine: {{memory: 32Gi, devices: [{{compute: Rocm, limit: {limit}}}]}}\n"
        )
        code, answer = run(tmp_path, fleet, KNOWN, placement("context: {tokens: 8192}"), output="json")
        assert code == 0
        lanes[limit] = json.loads(answer)["comes"][0]["compute"]
    assert lanes == {"16Gi": "Rocm", "256Mi": "Cpu"}


def test_geometry_is_read_from_the_header(tmp_path: Path) -> None:
    path = build_model(Shape(context=4096)).write(tmp_path / "m.gguf")
    code, answer = run(tmp_path, FLEET, model(source=path.as_uri()), placement("replicas: 1"), output="json")
    assert code == 0
    assert json.loads(answer)["comes"][0]["contextTokens"] == 4096


def test_header_that_can_not_be_read_refuses_the_placement(tmp_path: Path) -> None:
    code, text = run(tmp_path, FLEET, model(source="file:///nowhere/m.gguf"), placement("replicas: 1"))
    assert code == 1
    assert "header of variant 'v': 'file:///nowhere/m.gguf' can't be read: No such file or directory" in text


@pytest.mark.parametrize(
    ("fleet", "line", "words"),
    [
        (HEAD.format(kind="Node", name="a"), 1, "node 'a' must say what it is by `machine`"),
        (HEAD.format(kind="Node", name="a") + "machine: {ram: 1Gi}\n", 1, "`memory`: Field required"),
        (
            HEAD.format(kind="Node", name="a") + "machine: {memory: 1Gi}\nspec: {taints: 1}\n",
            5,
            "`spec.taints` must be",
        ),
        (
            HEAD.format(kind="Node", name="a") + "machine: {memory: 1Gi, devices: [{compute: Cuda}]}\n",
            1,
            "`memory` of a device with compute 'Cuda' must be given",
        ),
        (
            HEAD.format(kind="Node", name="a") + "machine: {memory: 1Gi, devices: [{compute: Metal, memory: 1Gi}]}\n",
            1,
            "`memory` of a device with compute 'Metal' must be absent",
        ),
        (
            HEAD.format(kind="Node", name="a") + "machine: {memory: 1Gi, devices: [{compute: Vulkan, limit: 1Gi}]}\n",
            1,
            "`limit` of a device with compute 'Vulkan' must be absent",
        ),
        (
            HEAD.format(kind="Node", name="a")
            + "machine: {memory: 1Gi, devices: [{compute: Rocm, memory: 1Gi, limit: 1Gi}]}\n",
            1,
            "`memory` of a device with compute 'Rocm' must be absent",
        ),
        (HEAD.format(kind="Nod", name="a"), 1, "`kind` must be one of"),
        ("- a\n", 1, "a document must be a mapping"),
        ("a: [", 1, "file must be valid YAML"),
    ],
)
def test_description_that_says_too_little_is_refused_with_its_line(
    tmp_path: Path, fleet: str, line: int, words: str
) -> None:
    with pytest.raises(CommandError) as refused:
        run(tmp_path, fleet)
    assert refused.value.code is ExitCode.WRONG_USE
    assert f"fleet.yaml:{line}: " in str(refused.value)
    assert words in str(refused.value)


def test_machine_that_is_described_twice_is_refused(tmp_path: Path) -> None:
    one = HEAD.format(kind="Node", name="a") + "machine: {memory: 1Gi}\n"
    with pytest.raises(CommandError, match="node 'a' must be described once"):
        run(tmp_path, one + "---\n" + one)
