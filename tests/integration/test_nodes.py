"""A node's bad days on real processes: a wrong clock, a copied disk, another name, another address, an old certificate;
and what the doctor says on such a machine. One controller for all, without models: engines have tests of their own."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey.doctor import place
from covey.doctor.finding import Level
from covey.doctor.place import Place
from covey.doctor.ports import look_at_ports
from covey_api.messages import CertificateRole
from covey_controller.authority import parse_authority
from covey_fleet_client.files import write_private
from covey_fleet_client.identity import load_identity
from covey_gateway.routing.access import AccessPolicy
from gateway_rig import LOOPBACK, running_gateway
from integration.test_https_clients import serving, write_pair
from kit.apart import Apart, running_apart
from kit.cache import shared_cache
from kit.fleet import wait_until
from kit.ports import free_port
from kit.wrong_clock import can_be_wrong, wrong_clock

pytestmark = [pytest.mark.integration]

DAY = 86_400
needs_compiler = pytest.mark.skipif(
    not can_be_wrong(), reason="no C compiler, which makes the library of a wrong clock"
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Apart]:
    with running_apart() as made:
        yield made


@contextmanager
def living(fleet: Apart, **variables: str) -> Generator[None]:
    """Parts that start in the block have these variables."""
    fleet.environment = variables
    try:
        yield
    finally:
        fleet.environment = {}


def is_reporting(fleet: Apart, node: str) -> bool:
    return fleet.condition("Ready", node).get("status") == "True"


def doctor(state: Path, *arguments: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit code and findings. No index is asked in earnest: its address is one where nobody listens."""
    done = subprocess.run(
        [sys.executable, "-m", "covey", "doctor", "-o", "json", "--state", str(state), *arguments],
        env=os.environ
        | {"PIP_INDEX_URL": f"http://ada:pa55word@127.0.0.1:{free_port()}/simple", "HF_HUB_OFFLINE": "1"}
        | {"COVEY_CACHE": str(shared_cache())}
        | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert "pa55word" not in done.stdout
    return done.returncode, json.loads(done.stdout)


def levels(body: dict[str, Any], check: str) -> dict[str, str]:
    """By what was found: its level."""
    return {each["found"]: each["level"] for each in body["findings"] if each["check"] == check}


@needs_compiler
def test_a_clock_a_day_ahead_is_told_and_the_node_works(fleet: Apart) -> None:
    with living(fleet, **wrong_clock(DAY + 3600)):
        fleet.start_agent(name="ahead", node="ahead")
        wait_until(lambda: is_reporting(fleet, "ahead"), f"it reports\n{fleet.log('ahead')}")
    assert "the controller's clock is -90000 s from this machine's; set both by NTP" in fleet.log("ahead")
    code, body = doctor(fleet.base / "ahead", **wrong_clock(DAY + 3600))
    assert code == 0
    (told,) = (found for found in levels(body, "clock") if "25 hours ahead of the controller's" in found)
    assert levels(body, "clock")[told] == "Warning"
    assert set(levels(body, "controller").values()) == {"Ok"}
    fleet.end("ahead")


@needs_compiler
def test_a_clock_that_no_certificate_stands_is_named_and_set_right_it_joins(fleet: Apart) -> None:
    told, wrong = "isn't valid at this machine's time", {"late": (100, "expired"), "early": (-3, "not yet valid")}
    for name, (days, _) in wrong.items():
        with living(fleet, **wrong_clock(days * DAY)):
            fleet.start_agent(name=name, node=name)
    for name, (_, words) in wrong.items():
        wait_until(lambda name=name: told in fleet.log(name), f"it is told\n{fleet.log(name)}")
        *_, line = (each for each in fleet.log(name).splitlines() if told in each)
        assert words in line
        assert "`covey doctor` says how far it is off" in line
        fleet.end(name)
        fleet.start_agent(name=name, node=name)
    for name in wrong:
        wait_until(
            lambda name=name: (fleet.base / name / "agent" / "name").exists(), f"it joins\n{fleet.log(name)}", 60
        )
        fleet.end(name)


def test_a_machine_of_a_copied_disk_is_refused_and_the_first_goes_on(fleet: Apart) -> None:
    fleet.start_agent(name="origin", node="origin")
    wait_until(lambda: is_reporting(fleet, "origin"), f"it reports\n{fleet.log('origin')}")
    shutil.copytree(fleet.base / "origin", fleet.base / "copy", ignore=shutil.ignore_patterns("*.lock", "*.sock"))
    shutil.copy(fleet.base / "origin.token", fleet.base / "copy.token")
    assert load_identity(fleet.base / "copy" / "agent").is_valid(CertificateRole.AGENT, "origin", time.time())
    fleet.start_agent(name="copy", node="origin")
    told = "another machine is connected as node 'origin', so this one is refused"
    wait_until(lambda: told in fleet.log("copy"), f"it is told\n{fleet.log('copy')}")
    assert "`--name`" in fleet.log("copy")
    _, body = doctor(fleet.base / "copy")
    (words,) = (found for found, level in levels(body, "controller").items() if level == "Broken")
    assert "the controller refuses this machine's agent since" in words
    assert told in words
    wait_until(lambda: is_reporting(fleet, "origin"), "the first goes on")
    assert "refused" not in fleet.log("origin")
    fleet.end("copy")
    fleet.end("origin")


def test_a_renamed_machine_is_who_it_was_without_a_token(fleet: Apart) -> None:
    """Its agent and its gateway; also where the controller's address is another."""
    patch = fleet.base / "patch"
    patch.mkdir(exist_ok=True)
    (patch / "sitecustomize.py").write_text("import os, socket\nsocket.gethostname = lambda: os.environ['CALLED']\n")
    flags = {"agent": ["--address", "127.0.0.1"], "gateway": ["--listen", f"127.0.0.1:{free_port()}"]}
    folders = {part: fleet.base / f"my-{part}" / part for part in flags}
    with living(fleet, PYTHONPATH=str(patch), CALLED="first.example"):
        for part, given in flags.items():
            fleet.renew_token(part, f"my-{part}")
            token = ["--token-file", str(fleet.base / f"my-{part}.token")]
            fleet.start(part, f"my-{part}", "--controller", fleet.controller_url, *token, *given)
    wait_until(lambda: all((each / "name").exists() for each in folders.values()), "they join")
    before = {part: load_identity(folder) for part, folder in folders.items()}
    assert {each.name for each in before.values()} == {"first"}
    address = fleet.controller_url.replace("127.0.0.1", "localhost")
    with living(fleet, PYTHONPATH=str(patch), CALLED="second.example"):
        for part, given in flags.items():
            fleet.end(f"my-{part}")
            fleet.start(part, f"my-{part}", "--controller", address, *given)
    for part, folder in folders.items():
        told = folder / "controller"
        wait_until(lambda told=told: told.read_text().strip() == address, f"it is back\n{fleet.log(f'my-{part}')}")
        after = load_identity(folder)
        assert (after.name, after.certificate) == (before[part].name, before[part].certificate)
        assert "could not join" not in fleet.log(f"my-{part}")
        fleet.end(f"my-{part}")


def test_an_old_certificate_renews_itself_while_the_agent_serves_and_the_doctor_disturbs_nothing(fleet: Apart) -> None:
    fleet.start_agent(name="old", node="old")
    state, vault = fleet.base / "old", fleet.state / "controller"
    wait_until((state / "agent" / "name").exists, f"it joins\n{fleet.log('old')}")
    fleet.end("old")
    authority = parse_authority((vault / "authority.pem").read_bytes(), (vault / "authority.key").read_bytes())
    joined = load_identity(state / "agent")
    aged = authority.issue_client(joined.key.public_key(), CertificateRole.AGENT, "old", time.time() - 40 * DAY)
    write_private(joined.certificate_path, aged)
    assert load_identity(state / "agent").renew_at < time.time()
    fleet.start_agent(name="old", node="old")
    wait_until(lambda: "certificate of agent 'old' renewed" in fleet.log("old"), f"it renews\n{fleet.log('old')}")
    renewed = load_identity(state / "agent")
    assert renewed.is_valid(CertificateRole.AGENT, "old", time.time())
    assert renewed.renew_at > time.time()
    assert renewed.key.public_key() == joined.key.public_key()
    wait_until(lambda: is_reporting(fleet, "old"), "it goes on")

    def warnings() -> list[str]:
        return [line for line in fleet.log("old").splitlines() if " WARNING " in line or " ERROR " in line]

    before_it = warnings()
    (state / "agent" / "key.pem").chmod(0o640)
    before = {path: path.stat().st_mtime_ns for path in (state / "agent").iterdir() if path.name != "assignments.json"}
    code, body = doctor(state, "--fix")
    assert (code, body["verdict"]) == (0, "Warning")  # the index where nobody listens
    assert body["mended"] == [f"state: chmod 600 '{state / 'agent' / 'key.pem'}'"]
    code, again = doctor(state, "--fix", "--strict")
    assert (code, again["mended"]) == (1, [])
    assert set(levels(body, "identity").values()) == {"Ok"}
    assert any("answers, and is the one that this machine joined" in each for each in levels(body, "controller"))
    assert any("agrees with the controller's" in each for each in levels(body, "clock"))
    assert any("LlamaServer/Cpu" in each for each in levels(body, "engines"))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert is_reporting(fleet, "old")
    assert warnings() == before_it
    fleet.end("old")


def test_doctor_without_a_fleet_writes_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    with socket.socket() as silent:  # takes connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        code, body = doctor(tmp_path / "state", "--cache", str(tmp_path / "cache"), "--fix", "--controller", url)
    assert code == 0
    assert list(tmp_path.iterdir()) == []
    assert set(levels(body, "index").values()) == {"Warning"}
    assert any("hasn't joined the fleet" in each for each in levels(body, "controller"))
    assert any("can't be compared" in each for each in levels(body, "clock"))


@pytest.mark.anyio
@pytest.mark.parametrize("policy", [LOOPBACK, AccessPolicy(needs_local_origin=False, needs_key=True)])
async def test_the_doctor_takes_a_gateway_that_is_its_own_service_for_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: AccessPolicy
) -> None:
    async with running_gateway(policy=policy, is_routed=False) as gateway:
        await gateway.server.app.load()  # as of one that has served for a moment: the doctor waits for 3 s
        monkeypatch.setattr(place, "DEFAULT_PORT", gateway.port)
        found, *_ = await asyncio.to_thread(look_at_ports, Place(tmp_path, tmp_path, {}, tmp_path))
    assert (found.level, "a gateway of Covey's listens" in found.found) == (Level.OK, True)


def test_the_doctor_knows_a_gateway_that_serves_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = write_pair(tmp_path, "gateway")
    with serving(tmp_path, certificate, key) as served:
        # As of one that has served for a moment: the doctor waits for 3 s.
        context = ssl.create_default_context(cafile=str(certificate))
        httpx.get(f"{served.url}/v1/models", verify=context, timeout=60)
        monkeypatch.setattr(place, "DEFAULT_PORT", served.port)
        found, *_ = look_at_ports(Place(tmp_path / "state", tmp_path, {}, tmp_path))
    assert (found.level, "a gateway of Covey's listens" in found.found) == (Level.OK, True)
