"""`covey wait`: until objects have a condition or are gone; what stands in the way is said meanwhile and at the end."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import click
from covey_api.kinds import Kind
from covey_api.text import escape_controls

from covey.commands.options import fleet_options, namespace_of, namespace_option, parse_targets
from covey.connect import Where, open_fleet
from covey.errors import CommandError, ExitCode
from covey.ports import JsonObject, Objects

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Wish:
    """What is waited for: a condition with a status, or without one the object's end."""

    words: str
    condition: str = ""
    status: str = "True"

    def holds(self, item: JsonObject) -> bool:
        return bool(self.condition) and _is_observed(item) and self._find(item).get("status") == self.status

    def describe(self, item: JsonObject) -> str:
        """How far it is, in the controller's words."""
        if not self.condition:
            return "it is still there"
        if not _is_observed(item):
            return "the controller has not looked at it yet as it is now"
        found = self._find(item)
        if not found:
            return f"it has no condition '{self.condition}' yet"
        reason, message = found.get("reason") or "no reason given", found.get("message") or ""
        return escape_controls(f"{self.condition} is {found.get('status')}: {reason}" + (message and f": {message}"))

    def _find(self, item: JsonObject) -> JsonObject:
        conditions: list[JsonObject] = item.get("status", {}).get("conditions") or []
        nothing: JsonObject = {}
        return next((each for each in conditions if each.get("type") == self.condition), nothing)


def _is_observed(item: JsonObject) -> bool:
    observed: int = item.get("status", {}).get("observedGeneration", -1)
    return observed >= item["metadata"].get("generation", 0)


def parse_wish(words: str) -> Wish:
    condition, _, status = words.removeprefix("condition=").partition("=")
    if words == "delete":
        return Wish(words)
    if not words.startswith("condition=") or not condition:
        raise CommandError(f"--for must be 'condition=TYPE[=STATUS]' or 'delete'; got '{words}'", ExitCode.WRONG_USE)
    return Wish(words, condition, status or "True")


@click.command()
@click.argument("target", nargs=-1, required=True)
@click.option("--for", "wanted", required=True, help="`condition=TYPE[=STATUS]` or `delete`.")
@click.option("--timeout", "timeout_seconds", type=float, default=60.0, show_default=True, help="Seconds to wait.")
@namespace_option
@fleet_options
def wait(target: tuple[str, ...], wanted: str, timeout_seconds: float, namespace: str | None, where: Where) -> None:
    """Wait until objects have a condition, or are gone.

    On a terminal it says meanwhile how far they are.
    """
    wish = parse_wish(wanted)
    targets = parse_targets(target)
    deadline = time.monotonic() + timeout_seconds
    with open_fleet(where) as fleet:
        for kind, name in targets:
            place = namespace_of(kind, namespace or fleet.namespace)
            wait_for(fleet.objects, kind, place, name, wish, deadline, _say if sys.stderr.isatty() else _say_nothing)
            click.echo(f"{kind.SINGULAR}/{name} {'condition met' if wish.condition else 'deleted'}")


def wait_for(
    objects: Objects,
    kind: type[Kind],
    namespace: str,
    name: str,
    wish: Wish,
    deadline: float,
    say: Callable[[str], None],
) -> None:
    """Until the wish holds; CommandError with what stands in its way once `time.monotonic()` is at the deadline."""
    said = ""
    while True:
        try:
            item = objects.get_object(kind.PLURAL, namespace, name)
        except CommandError as error:
            if error.code is ExitCode.NOTHING_MATCHED and not wish.condition:
                return
            raise
        if wish.holds(item):
            return
        if (words := wish.describe(item)) != said:
            said = words
            say(f"{kind.SINGULAR}/{name}: {words}")
        if time.monotonic() >= deadline:
            late = f"timed out waiting for {wish.words} on {kind.SINGULAR}/{name}: {words}"
            raise CommandError(late, ExitCode.TIMED_OUT)
        time.sleep(POLL_SECONDS)


def _say(words: str) -> None:
    click.echo(words, err=True)


def _say_nothing(_: str) -> None:
    pass
