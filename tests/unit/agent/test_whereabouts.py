"""Where others reach this node: found, kept while the machine has it, and found anew once it hasn't."""

import asyncio
from pathlib import Path

import pytest
from covey_agent import whereabouts as module
from covey_agent.whereabouts import Whereabouts
from covey_fleet_client.machine import has_address

pytestmark = pytest.mark.anyio
CONTROLLER = "https://192.0.2.1:52410"


class Machine:
    """What it has, and by which of it the controller is reached; both as long as somebody has no other network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has = {"10.0.0.5"}
        self.way = "10.0.0.5"
        self.looks = 0
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
        monkeypatch.setattr(module, "observe_address", self._find)
        monkeypatch.setattr(module, "has_address", self._has)

    def _find(self, url: str) -> str:
        assert url == CONTROLLER
        return self.way

    def _has(self, address: str) -> bool:
        self.looks += 1
        return address in self.has

    async def look(self) -> None:
        """It is looked at a few times more."""
        until = self.looks + 3
        async with asyncio.timeout(60):
            while self.looks < until:  # noqa: ASYNC110 - only polling sees it
                await asyncio.sleep(0.001)


async def test_an_address_that_the_machine_lost_is_found_anew_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine, told = Machine(monkeypatch), list[str]()
    here = Whereabouts("", CONTROLLER, tmp_path)
    watching = asyncio.create_task(here.watch(lambda: told.append(here.address)))
    await machine.look()
    # Another way to the controller is no reason: what runs is reached where it was.
    machine.has, machine.way = {"10.0.0.5", "172.16.0.9"}, "172.16.0.9"
    await machine.look()
    assert (here.address, told) == ("10.0.0.5", [])
    # No network at all: nothing better is known.
    machine.has, machine.way = set(), ""
    await machine.look()
    assert (here.address, told) == ("10.0.0.5", [])
    machine.has, machine.way = {"192.168.7.7"}, "192.168.7.7"
    await machine.look()
    assert (here.address, told) == ("192.168.7.7", ["192.168.7.7"])
    assert here.front is not None
    assert here.front.address == "192.168.7.7"
    assert "this node's address is '192.168.7.7' now, and was '10.0.0.5'" in caplog.text
    watching.cancel()


async def test_an_address_that_was_given_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.has = set()
    here = Whereabouts("198.51.100.4", CONTROLLER, tmp_path)
    async with asyncio.timeout(60):
        await here.watch(lambda: pytest.fail("it is its operator's"))
    assert (here.address, machine.looks) == ("198.51.100.4", 0)


@pytest.mark.parametrize(
    ("address", "is_here"),
    [("127.0.0.1", True), ("192.0.2.77", False), ("2001:db8::7", False), ("a.host.invalid", True), ("", True)],
)
def test_an_address_is_this_machines_or_not(address: str, is_here: bool) -> None:
    assert has_address(address) is is_here
