"""Whom a node is sent to for a blob: who has it, who fetches it, or its origin."""

from covey_api.messages import MAX_HOLDERS, NODE_SILENCE_SECONDS, Report, Wanted
from covey_controller.ports import AgentSession
from covey_controller.sharing import MAX_TURNS, TURN_SECONDS, Sharing

A, B = "a" * 64, "b" * 64


class Fleet:
    """Agents as the board knows them, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.agents: dict[str, AgentSession] = {}
        self.sharing = Sharing(lambda: self.now)

    def add(self, name: str, *blobs: str, address: str = "10.0.0.1", port: int = 52416, machine: str = "") -> None:
        report = Report(
            boot_id=name,
            sequence=1,
            version="0.1.0",
            full=True,
            address=address,
            machine=machine or name,
            blobs=tuple(sorted(blobs)),
            blobs_port=port,
        )
        self.agents[name] = AgentSession(name, last_seen=self.now, report=report)

    def ask(self, node: str, sha256: str = A, *tried: str, passed: str = "") -> tuple[list[str], str]:
        answer = self.sharing.answer(node, Wanted(sha256=sha256, tried=tried, passed=passed), self.agents)
        return [each.node for each in answer.holders], answer.fetcher

    def fetch(self, node: str, sha256: str = A, done_bytes: int = 0) -> None:
        self.sharing.answer(node, Wanted(sha256=sha256, fetching=True, done_bytes=done_bytes), self.agents)


def test_one_node_fetches_and_the_others_wait_for_it() -> None:
    fleet = Fleet()
    for name in "xyz":
        fleet.add(name)
    assert fleet.ask("x") == ([], "")
    assert fleet.ask("y") == fleet.ask("z") == ([], "x")
    assert fleet.ask("y", B) == ([], ""), "another blob's turn is another"
    fleet.now += TURN_SECONDS - 1
    fleet.fetch("x")
    fleet.now += TURN_SECONDS - 1
    assert fleet.ask("y") == ([], "x")
    fleet.add("x", A)
    assert fleet.ask("y") == (["x"], "")


def test_a_turn_that_is_not_heard_of_is_anothers() -> None:
    fleet = Fleet()
    fleet.ask("x")
    fleet.now += TURN_SECONDS
    assert fleet.ask("y") == ([], "")
    fleet.fetch("x")
    assert fleet.ask("z") == ([], "y"), "who lost its turn doesn't take it back"
    assert fleet.ask("y") == ([], ""), "it is still its own"


def test_who_fetches_without_getting_anything_loses_its_turn_to_one_node() -> None:
    fleet = Fleet()
    fleet.fetch("liar", done_bytes=7)
    answer = fleet.sharing.answer("x", Wanted(sha256=A), fleet.agents)
    assert (answer.fetcher, answer.fetched_bytes) == ("liar", 7)
    assert fleet.ask("x", passed="liar") == ([], ""), "the turn is its own now"
    assert fleet.ask("y", passed="liar") == ([], "x"), "and nobody else's"
    fleet.fetch("liar")
    assert fleet.ask("y") == ([], "x")


def test_who_gave_it_in_vain_is_not_named_again() -> None:
    fleet = Fleet()
    fleet.add("x", A)
    fleet.add("y", A)
    fleet.add("z")
    assert sorted(fleet.ask("z")[0]) == ["x", "y"]
    assert fleet.ask("z", A, "x") == (["y"], "")
    assert fleet.ask("z", A, "x", "y") == ([], "")


def test_only_who_can_give_it_is_named() -> None:
    fleet = Fleet()
    fleet.add("old", A, port=0)
    fleet.add("unknown", A, address="")
    fleet.add("loopback", A, address="127.0.0.1")
    fleet.add("other", B)
    fleet.agents["never"] = AgentSession("never", last_seen=fleet.now)
    fleet.add("asking", A, machine="here")
    fleet.add("neighbour", A, address="127.0.0.1", machine="here")
    assert fleet.ask("asking") == (["neighbour"], "")
    fleet.now += NODE_SILENCE_SECONDS
    assert fleet.ask("asking") == ([], "")


def test_to_a_command_the_node_itself_counts_as_any() -> None:
    fleet = Fleet()
    fleet.add("x", A, address="127.0.0.1")
    assert fleet.ask("x") == ([], "")
    wanted = Wanted(sha256=A, only_holders=True, by_command=True)
    assert [each.node for each in fleet.sharing.answer("x", wanted, fleet.agents).holders] == ["x"]
    fleet.add("y")
    elsewhere = fleet.sharing.answer("y", wanted, fleet.agents)
    assert elsewhere.holders == (), "it gives on its own machine alone"


def test_the_load_is_spread_and_an_answer_is_bounded() -> None:
    fleet = Fleet()
    for number in range(100):
        fleet.add(f"n{number}", A)
    answers = {tuple(fleet.ask(f"asking{number}")[0]) for number in range(50)}
    assert {len(answer) for answer in answers} == {MAX_HOLDERS}
    assert len({answer[0] for answer in answers}) > 20
    assert fleet.ask("asking1") == fleet.ask("asking1")


def test_turns_are_bounded() -> None:
    fleet = Fleet()
    for number in range(MAX_TURNS + 10):
        fleet.ask("x", f"{number:064x}")
    assert fleet.ask("y", f"{MAX_TURNS + 5:064x}") == ([], ""), "beyond, nobody waits"
    fleet.now += TURN_SECONDS
    assert fleet.ask("x") == ([], "")
    assert fleet.ask("y") == ([], "x")


def test_a_node_that_lists_a_blob_twice_is_forgotten_like_others() -> None:
    fleet = Fleet()
    fleet.add("x")
    fleet.add("y", A, A)
    assert fleet.ask("x") == (["y"], "")
    fleet.add("y", B)
    assert fleet.ask("x") == ([], "")
    fleet.add("y", B, B)
    assert fleet.ask("x", B) == (["y"], "")
    del fleet.agents["y"]
    assert fleet.ask("x", B) == ([], "")
