"""Two machines with one node's name, each with a real agent: the first goes on undisturbed, the second is refused."""

import re
from collections.abc import Generator

import pytest
from kit.apart import Apart, running_apart
from kit.fleet import EXAMPLE, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

REFUSED = re.compile(r"another machine is connected as node 'a', so this one is refused.*`--name`")


@pytest.fixture
def fleet() -> Generator[Apart]:
    with running_apart(EXAMPLE) as made:
        made.start_agent(name="first")
        wait_until(lambda: has_members(made, "first"), f"the first is assigned\n{made.log('first')}", 120)
        yield made


def has_members(fleet: Apart, name: str) -> bool:
    """Whether this agent was ever told to run anything."""
    path = fleet.base / name / "agent" / "assignments.json"
    return path.exists() and "smollm2-0" in path.read_text()


def test_a_second_machine_gets_no_assignments_until_the_first_is_gone(fleet: Apart) -> None:
    before = len(fleet.log("first"))
    fleet.start_agent(name="second")
    wait_until(lambda: REFUSED.search(fleet.log("second")), f"it is told\n{fleet.log('second')}", 60)
    wait_until(lambda: fleet.condition("NameContested").get("status") == "True", "the Node says so", 60)
    assert "`--name`" in fleet.condition("NameContested")["message"]
    refused = [line for line in fleet.log("second").splitlines() if REFUSED.search(line)]
    assert any("no assignments" in line for line in refused), refused
    assert len(refused) <= 2, "each call says it once"
    assert not has_members(fleet, "second")
    assert fleet.condition("Ready")["status"] == "True"
    for words in ("no assignments", "did not reach", "no place in this fleet"):
        assert words not in fleet.log("first")[before:]

    fleet.parts["first"].kill()
    fleet.parts["first"].wait()
    wait_until(lambda: has_members(fleet, "second"), f"the second is taken\n{fleet.log('second')}", 120)
    wait_until(lambda: not fleet.condition("NameContested"), "nobody contests the name any more", 60)
