"""What `covey wait` says while it waits and when its time is up."""

import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from covey.commands.waiting import parse_wish, wait_for
from covey.errors import CommandError, ExitCode
from covey.ports import JsonObject, Objects
from covey_api.placement import Placement


class Answers:
    """`get_object` alone: one answer after the other, the last for ever."""

    def __init__(self, *answers: JsonObject | None) -> None:
        self._answers = list(answers)

    def get_object(self, plural: str, namespace: str, name: str) -> JsonObject:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise CommandError(f"there is no '{namespace}/{name}' of {plural}", ExitCode.NOTHING_MATCHED)
        return answer


def placement(*, status: str = "", reason: str = "", message: str = "", observed: int = 2) -> JsonObject:
    condition: dict[str, Any] = {"type": "Ready", "status": status, "reason": reason, "message": message}
    found = {"observedGeneration": observed, "conditions": [condition] if status else []}
    return {"metadata": {"name": "mine", "generation": 2}, "status": found}


def wait(wish: str, *answers: JsonObject | None, say: Callable[[str], None], seconds: float) -> None:
    objects = cast("Objects", Answers(*answers))
    wait_for(objects, Placement, "default", "mine", parse_wish(wish), time.monotonic() + seconds, say)


@pytest.mark.parametrize(
    ("wish", "item", "words"),
    [
        (
            "condition=Ready",
            placement(status="False", reason="GeometryUnavailable", message="file '/m.gguf' is empty."),
            "Ready is False: GeometryUnavailable: file '/m.gguf' is empty.",
        ),
        ("condition=Ready", placement(), "it has no condition 'Ready' yet"),
        (
            "condition=Ready",
            placement(status="True", reason="Serving", observed=1),
            "not looked at it yet as it is now",
        ),
        ("condition=Ready", {"metadata": {"generation": 1}}, "not looked at it yet"),
        ("condition=Ready=False", placement(status="True", reason="Serving"), "Ready is True: Serving"),
        ("condition=Ready", placement(status="False", reason="R", message="a\x1b[31mb"), "a\\x1b[31mb"),
        ("delete", placement(), "it is still there"),
    ],
)
def test_a_wait_whose_time_is_up_says_what_stands_in_the_way(wish: str, item: JsonObject, words: str) -> None:
    with pytest.raises(CommandError) as caught:
        wait(wish, item, say=lambda _: None, seconds=0)
    assert caught.value.code is ExitCode.TIMED_OUT
    assert str(caught.value).startswith(f"timed out waiting for {wish} on placement/mine: ")
    assert words in str(caught.value)


def test_each_step_is_said_once_until_it_is_done() -> None:
    said: list[str] = []
    fetching = placement(status="False", reason="ArtifactsPending", message="'mine-0' is Fetching")
    starting = placement(status="False", reason="EngineStarting", message="'mine-0' is Starting")
    serving = placement(status="True", reason="Serving", message="1 of 1 replicas are ready")
    wait("condition=Ready", fetching, fetching, starting, serving, say=said.append, seconds=60)
    assert said == [
        "placement/mine: Ready is False: ArtifactsPending: 'mine-0' is Fetching",
        "placement/mine: Ready is False: EngineStarting: 'mine-0' is Starting",
    ]


def test_what_is_gone_is_deleted_and_has_no_condition() -> None:
    wait("delete", placement(), None, say=lambda _: None, seconds=60)
    with pytest.raises(CommandError, match="there is no 'default/mine'") as caught:
        wait("condition=Ready", None, say=lambda _: None, seconds=60)
    assert caught.value.code is ExitCode.NOTHING_MATCHED
