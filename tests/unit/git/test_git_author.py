"""Authors of commits, as git writes them."""

import pytest
from covey_api.kinds import ObjectKey
from covey_controller.control_api.messages import ApplyBody
from covey_controller.ports import Applied
from covey_controller.stores.git.author import parse_author
from covey_controller.stores.git.edits import render_message
from pydantic import ValidationError


@pytest.mark.parametrize("text", ["Ada <ada@example.com>", "Zoë van der Berg <z@x>", "a.b <a@b>"])
def test_an_author_is_name_and_address(text: str) -> None:
    signature = parse_author(text, "words")
    assert f"{signature.name} <{signature.email}>" == text
    assert ApplyBody.model_validate({"text": "", "author": text}).author == text


@pytest.mark.parametrize(
    "text", ["Ada", "<ada@x>", " <a@b>", "... <a@b>", "A\nB <a@b>", "A <a b>", "A <<a>>", "A" * 300]
)
def test_what_git_would_not_write_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="author must be 'Name <email>'"):
        parse_author(text, "words")
    with pytest.raises(ValidationError):
        ApplyBody.model_validate({"text": "", "author": text})


def test_without_an_author_the_controller_signs() -> None:
    assert parse_author("", "words").name == "Covey"


def test_a_message_names_the_objects() -> None:
    def applied(name: str, outcome: str) -> Applied:
        return Applied(ObjectKey("Model", "team", name), outcome)

    assert render_message([applied("a", "created"), applied("b", "unchanged")]) == "Create Model team/a"
    assert render_message([Applied(ObjectKey("Node", "", "n"), "deleted")]) == "Delete Node n"
    many = render_message([applied(name, "configured") for name in "abcd"])
    assert many.splitlines()[:3] == ["Change Model team/a and 3 more", "", "Change Model team/a"]
