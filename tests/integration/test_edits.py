"""Edits of the YAML while Covey runs: what they change, and what they must not."""

import shutil
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from kit.fleet import EXAMPLE, RunningFleet, running_fleet, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PLACEMENT = (EXAMPLE / "placement.yaml").read_text()
# Longer than the rest of vanished objects (2 s) and a plan: after it, nothing more comes of an edit.
QUIET_SECONDS = 4.0


@pytest.fixture(scope="module")
def shared() -> Generator[RunningFleet]:
    with running_fleet() as running:
        yield running


@pytest.fixture
def fleet(shared: RunningFleet) -> RunningFleet:
    """The shared fleet, put back to the example with one ready instance of it."""
    shutil.rmtree(shared.folder, ignore_errors=True)
    shutil.copytree(EXAMPLE, shared.folder)
    wait_until(lambda: is_settled(shared, 1), "the example is served by one instance")
    return shared


def is_settled(fleet: RunningFleet, replicas: int) -> bool:
    instances = fleet.objects("instances")
    placements = fleet.objects("placements")
    seen = all(p["status"]["observedGeneration"] == p["metadata"]["generation"] for p in placements)
    return seen and len(instances) == replicas == len(fleet.ready_instances())


def identities(fleet: RunningFleet) -> set[str]:
    return {item["spec"]["instanceId"] for item in fleet.objects("instances")}


def engines(fleet: RunningFleet) -> set[int]:
    return {process.pid for process in fleet.processes_of("llama-server")}


def source(fleet: RunningFleet) -> str:
    """What `covey get source` says, once something is expected of it."""
    return fleet.covey("get", "source").stdout


def wished(**spec: object) -> str:
    lines = "\n".join(f"  {key}: {value}" for key, value in spec.items())
    return f"{PLACEMENT}{lines}\n"


def assert_nothing_changes(fleet: RunningFleet, before: tuple[set[str], set[int]]) -> None:
    time.sleep(QUIET_SECONDS)
    assert (identities(fleet), engines(fleet)) == before
    assert fleet.ask().status_code == 200


def state_of(fleet: RunningFleet) -> tuple[set[str], set[int]]:
    return identities(fleet), engines(fleet)


@pytest.mark.parametrize("what", ["files", "folder"])
def test_an_emptied_source_deletes_nothing_and_says_so(fleet: RunningFleet, what: str) -> None:
    before = state_of(fleet)
    if what == "folder":
        shutil.rmtree(fleet.folder)
    else:
        for path in fleet.folder.iterdir():
            path.unlink()
    assert_nothing_changes(fleet, before)
    assert "--allow-empty" in source(fleet)


BROKEN = {
    "not-yaml.yaml": ("kind: [Model\n", "not-yaml.yaml:1"),
    "misspelt.yaml": (PLACEMENT.replace("modelRef", "modelRfe"), "misspelt.yaml:5"),
    "wrong-value.yaml": (
        PLACEMENT.replace("smollm2}\nspec", "other}\nspec") + "  replicas: many\n",
        "wrong-value.yaml:6",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_changes_nothing_and_is_explained(fleet: RunningFleet, name: str) -> None:
    text, place = BROKEN[name]
    before = state_of(fleet)
    fleet.write(name, text)
    wait_until(lambda: place in source(fleet), f"the source's state names {place}")
    assert "must" in source(fleet)
    assert place in fleet.error_path.read_text(), "the person in front of covey up is told"
    assert_nothing_changes(fleet, before)
    (fleet.folder / name).unlink()
    wait_until(lambda: "Refused" not in source(fleet), "the mended set is taken")


def test_a_rename_changes_nothing(fleet: RunningFleet) -> None:
    before = state_of(fleet)
    (fleet.folder / "placement.yaml").rename(fleet.folder / "wish.yaml")
    assert_nothing_changes(fleet, before)


def test_a_half_written_save_waits_for_rest(fleet: RunningFleet) -> None:
    before = state_of(fleet)
    path = fleet.folder / "placement.yaml"
    whole = PLACEMENT.encode()
    for end in range(0, len(whole), 30):
        path.write_bytes(whole[:end])
        time.sleep(0.05)
    path.write_bytes(whole)
    assert_nothing_changes(fleet, before)
    assert "Refused" not in source(fleet)


def test_names_of_editors_are_ignored(fleet: RunningFleet) -> None:
    before = state_of(fleet)
    for name in (".hidden.yaml", "placement.yaml~", "placement.yaml.swp", "placement.yaml.tmp", "notes.txt"):
        fleet.write(name, "kind: [broken")
    assert_nothing_changes(fleet, before)
    assert "Refused" not in source(fleet)


def test_a_symlink_inside_is_followed_and_one_outside_is_refused(fleet: RunningFleet, tmp_path: Path) -> None:
    before = state_of(fleet)
    (fleet.folder / "real").mkdir()
    (fleet.folder / "placement.yaml").rename(fleet.folder / "real" / "kept.txt")
    (fleet.folder / "placement.yaml").symlink_to("real/kept.txt")
    assert_nothing_changes(fleet, before)
    outside = tmp_path / "outside.yaml"
    outside.write_text(PLACEMENT)
    (fleet.folder / "leak.yaml").symlink_to(outside)
    wait_until(lambda: "leak.yaml" in source(fleet), "the symlink is refused by name")
    assert_nothing_changes(fleet, before)


def test_an_emptied_file_is_a_deletion_of_what_it_held(fleet: RunningFleet) -> None:
    fleet.write("empty.yaml", "# nothing but words\n")
    before = state_of(fleet)
    assert_nothing_changes(fleet, before)
    fleet.write("placement.yaml", "# nothing any more\n")
    wait_until(lambda: not fleet.objects("instances"), "the placement's instance is gone")


def test_the_same_object_twice_is_refused_with_both_places(fleet: RunningFleet) -> None:
    before = state_of(fleet)
    fleet.write("twin.yaml", PLACEMENT)
    wait_until(lambda: "twin.yaml:1" in source(fleet), "the twin is refused")
    assert "placement.yaml:1" in source(fleet)
    assert_nothing_changes(fleet, before)
