"""Checks of the doctor on folders and texts; none of them needs a fleet."""

import fcntl
import json
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest
from covey.doctor import folders, ports
from covey.doctor.accelerators import has_nvidia_card, look_at_gpu
from covey.doctor.clock import judge_skew
from covey.doctor.examine import Check, examine, mend
from covey.doctor.finding import Finding, Level, judge, ok, render_text
from covey.doctor.folders import look_at_cache, look_at_disk, look_at_state
from covey.doctor.machine import describe_groups, describe_sleep
from covey.doctor.network import look_at_controller, look_at_indexes
from covey.doctor.place import Place
from covey.doctor.ports import count_free, look_at_ports
from covey.doctor.programs import Said
from covey_agent.artifacts.cache import Cache
from covey_fleet_client.standing import StandingFile
from kit.ports import free_port

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "state", tmp_path / "cache", {"PATH": "/usr/bin:/bin"}, tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_folders_that_are_not_there_yet_are_fine_and_stay_away(place: Place) -> None:
    found = [*look_at_state(place), *look_at_cache(place), *look_at_disk(place)]
    assert judge(found[:2]) is Level.OK
    assert not place.state.exists()
    assert not place.cache.exists()


def test_open_folders_and_secrets_are_told_and_mended_once(place: Place) -> None:
    place.state.mkdir(mode=0o755)
    key = write(place.state / "agent" / "key.pem", "secret")
    key.chmod(0o644)
    other = write(place.state / "agent" / "name", "a")
    other.chmod(0o644)
    found = look_at_state(place)
    assert judge(found) is Level.WARNING
    assert [each.fix for each in found] == [f"chmod 700 '{place.state}'", f"chmod 600 '{key}'"]
    assert len(mend(found)) == 2
    assert place.state.stat().st_mode & 0o777 == 0o700
    assert key.stat().st_mode & 0o777 == 0o600
    assert other.stat().st_mode & 0o777 == 0o644
    again = look_at_state(place)
    assert judge(again) is Level.OK
    assert mend(again) == []


def test_a_link_is_refused_and_never_mended_by_its_target(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    place.state.symlink_to(target)
    (found,) = look_at_state(place)
    assert (found.level, found.mend) == (Level.BROKEN, None)
    assert "symlink" in found.found
    place.state.unlink()
    place.state.mkdir(mode=0o755)
    found, *_ = look_at_state(place)
    place.state.rmdir()
    place.state.symlink_to(target)
    assert mend([found]) == []
    assert target.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(IS_ROOT, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_broken(place: Place) -> None:
    place.cache.mkdir(mode=0o500)
    (found,) = look_at_cache(place)
    assert (found.level, "can't be written" in found.found) == (Level.BROKEN, True)


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a folder away")
def test_a_state_folder_of_another_user_is_broken(place: Place) -> None:
    place.state.mkdir()
    os.chown(place.state, 12345, 12345)
    (found,) = look_at_state(place)
    assert (found.level, "belongs to 12345" in found.found) == (Level.BROKEN, True)


@pytest.mark.parametrize("name", ["blobs/sha256", "pins", "partial"])
def test_a_folder_of_the_cache_that_cannot_be_used_is_broken(place: Place, name: str) -> None:
    """A file in its place is what root can't write in either."""
    write(place.cache / name, "")
    (found,) = look_at_cache(place)
    assert found.level is Level.BROKEN
    assert f"'{Path(name).name}' must be a folder" in found.found
    (place.cache / name).unlink()
    Cache(place.cache)
    assert judge(look_at_cache(place)) is Level.OK


def test_every_folder_of_a_cache_is_looked_at(tmp_path: Path) -> None:
    Cache(tmp_path)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert made == set(folders.CACHE_FOLDERS)


def test_a_file_in_the_place_of_a_folder_is_broken(place: Place) -> None:
    place.cache.write_text("no folder")
    (found,) = look_at_cache(place)
    assert (found.level, "something else" in found.found) == (Level.BROKEN, True)


def test_a_check_that_hangs_is_told_and_keeps_nobody_waiting(place: Place) -> None:
    for_ever = threading.Event()

    def hang(_: Place) -> list[Finding]:
        for_ever.wait(60)
        return []

    began = time.monotonic()
    found = examine([Check("gpu", hang, 0.3), Check("disk", lambda _: [ok("disk", "fine")])], place)
    assert time.monotonic() - began < 30
    assert [(each.check, each.level) for each in found] == [("gpu", Level.BROKEN), ("disk", Level.OK)]
    assert "no answer within" in found[0].found
    for_ever.set()


def test_a_check_that_fails_is_a_finding(place: Place) -> None:
    def fail(_: Place) -> list[Finding]:
        raise RuntimeError("odd\nwords")

    (found,) = examine([Check("gpu", fail)], place)
    assert found.level is Level.BROKEN
    assert "RuntimeError: odd words" in str(found.to_json()["found"])


def test_no_secret_leaves_by_a_programs_words() -> None:
    secrets = ["hf_abcdefghijklmnop", f"covey-0123456789ab.{'s' * 43}.{'0' * 64}", "ada:pa55word"]
    words = f"can't reach https://{secrets[2]}@mirror/simple with {secrets[0]} or {secrets[1]}\x1b[2J"
    finding = Finding("index", Level.WARNING, words, words, words)
    for shown in (json.dumps(finding.to_json()), render_text([finding], [words])):
        assert not any(secret in shown for secret in (*secrets[:2], "pa55word"))
        assert "\x1b" not in shown
        assert "https://mirror/simple" in shown


def test_findings_keep_the_names_that_programs_read() -> None:
    finding = Finding("state", Level.WARNING, "a", "b", "c", mend=lambda: None)
    assert finding.to_json() == {
        "check": "state",
        "level": "Warning",
        "found": "a",
        "consequence": "b",
        "fix": "c",
        "fixable": True,
    }
    assert [level.value for level in Level] == ["Ok", "Warning", "Broken"]
    assert judge([ok("a", "b"), finding]) is Level.WARNING
    assert judge([]) is Level.OK


@pytest.mark.parametrize(
    ("ahead", "level", "words"),
    [
        (2.0, Level.OK, "agrees"),
        (-29.0, Level.OK, "agrees"),
        (40.0, Level.WARNING, "40 seconds ahead of"),
        (-7 * 3600.0, Level.WARNING, "7 hours behind"),
        (86_401.0, Level.WARNING, "24 hours ahead of"),
        (61 * 86_400.0, Level.BROKEN, "61 days ahead of"),
        (-86_401.0, Level.BROKEN, "24 hours behind"),
        (-90 * 86_400.0, Level.BROKEN, "90 days behind"),
    ],
)
def test_skew_is_told_in_words(ahead: float, level: Level, words: str) -> None:
    found = judge_skew(ahead)
    assert found.level is level
    assert words in found.found
    assert bool(found.consequence and found.fix) is (level is not Level.OK)


def test_ports_that_others_hold_are_told(place: Place) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert count_free("127.0.0.1", [port]) == 0
    assert count_free("127.0.0.1", [port]) == 1
    assert {each.check for each in look_at_ports(place)} == {"ports"}


def program(folder: Path, name: str, script: str) -> None:
    path = write(folder / name, f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "level", "words"),
    [
        ("echo 'GPU-1234, NVIDIA H200, 143771'", Level.OK, "NVIDIA H200 (Cuda, 140.4 GiB, GPU-1234)"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            Level.WARNING,
            "version mismatch",
        ),
        ("exec sleep 30", Level.BROKEN, "doesn't answer"),
    ],
)
def test_the_gpus_own_tool_is_asked_with_a_deadline(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, level: Level, words: str
) -> None:
    program(tmp_path / "bin", "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    found = look_at_gpu(place)[0]
    assert (found.level, words in found.found) == (level, True), found.found


def test_an_identity_that_cannot_be_read_is_told_beside_what_else_is_found(place: Place) -> None:
    """A folder where a file should be is what root can't read either."""
    write(place.state / "agent" / "controller", "https://127.0.0.1:1\n")
    write(place.state / "agent" / "certificate.pem", "nonsense")
    write(place.state / "gateway" / "certificate.pem", "nonsense")
    (place.state / "gateway" / "key.pem").mkdir()
    before = {path: path.stat().st_mode for path in place.state.rglob("*")}
    controller, agent, gateway = look_at_controller(place)
    assert {each.level for each in (controller, agent, gateway)} == {Level.BROKEN}
    assert (controller.check, "can't be used: Is a directory" in controller.found) == ("controller", True)
    assert "holds a certificate and no key of it" in agent.found
    assert "can't be read: Is a directory" in gateway.found
    assert {path: path.stat().st_mode for path in place.state.rglob("*")} == before


def test_what_the_controller_said_to_the_agent_is_told_until_it_takes_a_report(place: Place) -> None:
    write(place.state / "agent" / "controller", "https://127.0.0.1:1\n")
    StandingFile(place.state / "agent").note("node 'a' was removed from the fleet")
    _, refused = look_at_controller(place)
    assert (refused.check, refused.level) == ("controller", Level.BROKEN)
    assert "node 'a' was removed from the fleet" in refused.found
    StandingFile(place.state / "agent").note("")
    assert len(look_at_controller(place)) == 1
    write(place.state / "agent" / "refusal.json", "[]")
    assert len(look_at_controller(place)) == 1


def test_the_hub_is_where_the_agent_finds_it(place: Place, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        hub = f"127.0.0.1:{nobody.getsockname()[1]}"
        variables = {"PIP_INDEX_URL": tmp_path.as_uri(), "HF_ENDPOINT": f" http://ada:pa55word@{hub}/ "}
        index, found = look_at_indexes(replace(place, environment=variables))
    assert index.level is Level.OK
    assert f"the model hub at http://{hub} can't be reached" in found.found


@pytest.mark.parametrize("url", ["https://ada:pa/ss@h/simple", "https://ada:1/pa55word@h/", "https://[pa55word"])
def test_a_url_that_is_none_is_told_without_a_word_of_it(place: Place, url: str) -> None:
    for variables in (
        {"PIP_INDEX_URL": url, "HF_HUB_OFFLINE": "1"},
        {"PIP_INDEX_URL": "file:///x", "HF_ENDPOINT": url},
    ):
        *_, found = examine([Check("index", look_at_indexes)], replace(place, environment=variables))
        assert (found.level, "can't be read as one" in found.found) == (Level.WARNING, True), found.found
        for shown in (json.dumps(found.to_json()), render_text([found], [])):
            assert not any(part in shown for part in ("ada", "pa/ss", "'pa'", "pa55word"))


def test_a_file_of_logins_that_is_none_is_told_without_a_word_of_it(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / ".netrc", "machine h login ada password pa55word pa66word\n").chmod(0o600)
    variables = {"PIP_INDEX_URL": f"http://127.0.0.1:{free_port()}/simple", "HF_HUB_OFFLINE": "1"}
    index, logins = look_at_indexes(replace(place, environment=variables))
    assert "can't be reached" in index.found
    assert f"'{tmp_path / '.netrc'}' can't be read as a file of logins" in logins.found
    assert "word" not in caplog.text + index.found + logins.found.replace("can't", "")


def test_a_card_without_a_driver_is_seen_on_the_bus(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    write(device / "class", "0x030200\n")
    assert not has_nvidia_card(tmp_path)
    write(device / "vendor", "0x10de\n")
    assert has_nvidia_card(tmp_path)


def test_a_laptop_and_an_idle_machine_that_sleep_are_told(tmp_path: Path) -> None:
    assert describe_sleep(tmp_path, None).level is Level.OK
    write(tmp_path / "sys/power/state", "freeze mem disk\n")
    assert describe_sleep(tmp_path, None).level is Level.OK
    write(tmp_path / "sys/class/power_supply/BAT0/type", "Battery\n")
    laptop = describe_sleep(tmp_path, Said(0, "static"))
    assert (laptop.level, "lid" in laptop.found) == (Level.WARNING, True)
    assert describe_sleep(tmp_path, Said(1, "masked\n")).level is Level.OK
    conf = write(tmp_path / "etc/systemd/logind.conf", "[Login]\n#HandleLidSwitch=suspend\nHandleLidSwitch=ignore\n")
    assert describe_sleep(tmp_path, None).level is Level.OK
    write(tmp_path / "etc/systemd/logind.conf.d/idle.conf", "[Login]\nIdleAction=suspend\n")
    assert "IdleAction=suspend" in describe_sleep(tmp_path, None).found
    conf.unlink()


def test_what_control_groups_hand_down_is_told(tmp_path: Path) -> None:
    assert describe_groups(tmp_path, 1000, "").level is Level.WARNING
    write(tmp_path / "sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory pids\n")
    assert describe_groups(tmp_path, 1000, "").level is Level.OK
    service = tmp_path / "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
    write(service / "cgroup.controllers", "pids\n")
    assert describe_groups(tmp_path, 1000, "").level is Level.WARNING
    write(service / "cgroup.controllers", "memory pids\n")
    assert describe_groups(tmp_path, 1000, "").level is Level.OK


def hold(place: Place, port: int) -> TextIO:
    """As a parent does whose gateway is to listen there."""
    place.state.mkdir()
    lock = (place.state / "up.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    write(place.state / "up.json", json.dumps({"pid": "1", "gatewayUrl": f"http://127.0.0.1:{port}"}))
    return lock


def test_a_gateway_that_starts_is_waited_for_and_none_that_should_long_be_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_WAIT_SECONDS", 0.5)
    with hold(place, free_port()):
        found = look_at_ports(place)[0]
        assert (found.level, "starts, and doesn't listen" in found.found) == (Level.WARNING, True)
        long_ago = time.time() - 600
        os.utime(place.state / "up.json", (long_ago, long_ago))
        found = look_at_ports(place)[0]
        assert (found.level, "nobody listens" in found.found) == (Level.BROKEN, True)


def test_a_gateway_that_listens_a_moment_later_is_fine(place: Place) -> None:
    port = free_port()
    late: list[socket.socket] = []
    with hold(place, port):
        timer = threading.Timer(0.5, lambda: late.append(socket.create_server(("127.0.0.1", port))))
        timer.start()
        found = look_at_ports(place)[0]
        timer.join()
    late[0].close()
    assert (found.level, "listens on" in found.found) == (Level.OK, True)
