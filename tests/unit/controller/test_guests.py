"""Places for peers without a certificate: the oldest makes room, its own address first."""

import pytest
from covey_controller.serving import guests
from covey_controller.serving.guests import Guests, network_of


def test_the_oldest_of_an_address_makes_room_for_its_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "MAX_GUESTS_OF_ONE", 2)
    present, ended = Guests(), list[str]()
    present.enter("192.0.2.9", lambda: ended.append("other"))
    for name in ("first", "second", "third", "fourth"):
        present.enter("192.0.2.1", lambda name=name: ended.append(name))
    assert ended == ["first", "second"]


def test_the_oldest_of_all_makes_room_when_all_places_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "MAX_GUESTS", 3)
    present, ended = Guests(), list[int]()
    entered = [present.enter(f"192.0.2.{number}", lambda number=number: ended.append(number)) for number in range(3)]
    present.leave(entered[0])
    present.enter("192.0.2.3", lambda: ended.append(3))
    assert ended == []
    present.enter("192.0.2.4", lambda: ended.append(4))
    assert ended == [1]


def test_who_left_is_not_ended_and_may_leave_twice() -> None:
    present, ended = Guests(), list[str]()
    guest = present.enter("192.0.2.1", lambda: ended.append("it"))
    present.leave(guest)
    present.leave(guest)
    assert ended == []


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_addresses_that_one_peer_can_choose_among_count_as_one(host: str, network: str) -> None:
    assert network_of(host) == network
