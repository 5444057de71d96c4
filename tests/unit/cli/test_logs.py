"""What a followed log prints: what is new of an output of which only the last part is ever seen."""

from covey.commands.logs import find_new, whole_lines
from hypothesis import given
from hypothesis import strategies as st


@given(
    lines=st.lists(st.integers(0, 10**9).map(lambda n: f"line {n}\n"), min_size=1, max_size=80, unique=True),
    seen=st.integers(0, 80),
    room=st.integers(20, 400),
)
def test_tails_of_one_output_are_joined_without_a_gap_or_a_repeat(lines: list[str], seen: int, room: int) -> None:
    before, after = "".join(lines[:seen])[-room:], "".join(lines)[-room:]
    new = find_new(before, after)
    shown = "".join(lines[:seen]) + (after if new is None else new)
    if new is not None:
        assert "".join(lines) == shown or not before
    else:  # more came than a tail holds
        assert len("".join(lines[seen:])) > room - 40


def test_an_output_that_goes_on_without_limit_shows_each_line_once() -> None:
    output = "".join(f"{number:06}\n" for number in range(4000))
    shown, before = output[:700], output[:700]
    for end in range(700, len(output) + 1, 700):
        after = output[max(0, end - 4096) : end]
        new = find_new(before, after)
        assert new is not None
        shown, before = shown + new, after
    assert shown == output[: len(shown)]
    assert len(shown) > len(output) - 700


def test_another_output_has_nothing_in_common() -> None:
    assert find_new("a" * 300 + "\n", "b" * 300 + "\n") is None
    assert find_new("", "all\n") == "all\n"


def test_line_that_is_not_over_waits() -> None:
    assert whole_lines("one\ntwo") == "one\n"
    assert whole_lines("two") == ""
