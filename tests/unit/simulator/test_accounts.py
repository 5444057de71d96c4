"""What is written down of a run: shortages, and clients' requests that are told as one trouble."""

from covey_api.kinds import ObjectKey
from covey_controller.reconcile.outcomes import Note
from covey_simulator.accounts import ANSWERED, MENDED_SECONDS, Accounts, Shortage

CHAT = ObjectKey("Placement", "default", "chat")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def begun() -> tuple[Clock, Accounts]:
    clock = Clock()
    accounts = Accounts(clock)
    clock.now = 100.0
    accounts.begin("")
    return clock, accounts


def test_what_was_told_before_the_beginning_has_negative_times() -> None:
    clock = Clock()
    accounts = Accounts(clock)
    clock.now = 40.0
    accounts.tell("node/a", "its agent reports")
    clock.now = 100.0
    accounts.begin("")
    clock.now = 130.0
    accounts.tell("scenario", "node 'a' dies")
    assert [entry.at for entry in accounts.entries] == [-60.0, 30.0]


def test_shortage_lasts_until_as_many_serve_as_are_wished() -> None:
    clock, accounts = begun()
    for at, serving, wished in ((0, 2, 2), (10, 1, 2), (20, 0, 2), (30, 1, 2), (40, 2, 2), (50, 2, 3), (60, 2, 2)):
        clock.now = 100.0 + at
        accounts.on_counts({CHAT: serving}, {CHAT: wished})
    assert accounts.shortages[CHAT] == [Shortage(10.0, 2, 40.0), Shortage(50.0, 1, 60.0)]


def test_placement_that_is_deleted_is_short_no_longer() -> None:
    clock, accounts = begun()
    accounts.on_counts({CHAT: 0}, {CHAT: 1})
    clock.now += 5.0
    accounts.on_counts({}, {})
    assert accounts.shortages[CHAT] == [Shortage(0.0, 1, 5.0)]


def test_lost_requests_are_one_trouble_until_none_was_lost_for_a_while() -> None:
    clock, accounts = begun()
    lost = "503 model_loading"
    for at, outcome in ((0, ANSWERED), (1, lost), (2, ANSWERED), (3, lost), (3.5, ANSWERED)):
        clock.now = 100.0 + at
        accounts.on_outcome("chat", outcome)
    clock.now = 103.0 + MENDED_SECONDS
    accounts.on_outcome("chat", ANSWERED)
    assert [(entry.at, entry.message) for entry in accounts.entries] == [
        (1.0, "requests for 'chat' are lost: 503 model_loading"),
        (13.0, "requests for 'chat' are answered again: 2 lost within 2 s"),
    ]
    assert (accounts.models["chat"].asked, accounts.models["chat"].answered) == (6, 4)


def test_what_goes_its_ordinary_way_is_not_told() -> None:
    _, accounts = begun()
    accounts.on_note(Note(CHAT, "EngineStarting", "0 of 1 replicas are ready"))
    accounts.on_note(Note(CHAT, "EngineStarting", "Starting after Exited: exited with 1", warning=True))
    accounts.on_note(Note(CHAT, "PartlyServing", "1 of 2 replicas are ready; 1 node InsufficientMemory"))
    assert [(entry.who, entry.reason) for entry in accounts.entries] == [
        ("placement/chat", "EngineStarting"),
        ("placement/chat", "PartlyServing"),
    ]


def test_namespace_is_named_where_it_is_not_the_usual_one() -> None:
    _, accounts = begun()
    accounts.on_note(Note(ObjectKey("Placement", "team", "chat"), "Serving", "1 of 1 replicas are ready"))
    assert accounts.entries[0].who == "placement/team/chat"
