"""A gateway that is removed by the command: cut off at once, refused at renewal, let in again by a new token alone."""

import asyncio
import json
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import load_identity
from kit.apart import Apart, running_apart
from kit.fleet import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

REFUSED = "was removed from the fleet"


@pytest.fixture(scope="module")
def fleet() -> Generator[Apart]:
    with running_apart() as made:
        made.start_gateway()
        wait_until(lambda: is_connected(made), f"the gateway is connected\n{made.log('gateway')}", 60)
        yield made


def is_connected(fleet: Apart) -> bool:
    listed = json.loads(fleet.covey("get", "gateways", "-o", "json").stdout)["items"]
    return any(each["name"] == "gw" and each["connected"] for each in listed)


def renew(folder: Path, url: str) -> None:
    async def ask() -> None:
        async with FleetClient(load_identity(folder), url) as client:
            await client.renew()

    asyncio.run(ask())


def test_gateways_are_listed_with_their_certificates(fleet: Apart) -> None:
    head, row = fleet.covey("get", "gateways").stdout.splitlines()
    assert head.split() == ["NAME", "CONNECTED", "CURRENT", "ADDRESS", "CERTIFICATE"]
    assert row.split()[:2] == ["gw", "True"]
    assert row.split()[3] == fleet.gateway_url
    assert row.split()[4].endswith("s")
    assert fleet.covey("get", "gateway/gw", "-o", "name").stdout == "gateway/gw\n"
    assert fleet.covey("get", "gateways", "nope").returncode == 3


def test_what_names_no_gateway_removes_none(fleet: Apart) -> None:
    answer = fleet.covey("delete", "gateway/nope")
    assert (answer.returncode, "no gateway 'nope' has a certificate" in answer.stderr) == (3, True)
    for words in (("gateway",), ("gateway/",), ("gateway/gw", "model/m")):
        assert fleet.covey("delete", *words).returncode == 2
    assert is_connected(fleet)


def test_a_removed_gateway_is_cut_off_at_once_and_comes_back_by_a_new_token_alone(fleet: Apart) -> None:
    folder = fleet.base / "gateway" / "gateway"
    answer = fleet.covey("delete", "gateway/gw")
    assert (answer.returncode, answer.stdout) == (0, "gateway/gw deleted\n")
    wait_until(lambda: REFUSED in fleet.log("gateway"), "its stream has ended", 30)
    assert fleet.covey("get", "gateways").stderr == "No gateways found.\n"
    with pytest.raises(FleetError, match=REFUSED) as caught:
        renew(folder, fleet.controller_url)
    assert caught.value.kind is FleetErrorKind.DENIED

    # The token that it came by is no way back, not even one with uses left; and the process goes on.
    time.sleep(3)
    assert fleet.parts["gateway"].poll() is None
    assert fleet.covey("get", "gateways").stderr == "No gateways found.\n"
    fleet.renew_token("gateway", "gateway")
    wait_until(lambda: is_connected(fleet), "it has joined by the new token", 60)
    renew(folder, fleet.controller_url)
