"""`covey logs` and `covey capture`: what engines print, and all that their nodes can tell of them."""

import signal
import sys
import time
from pathlib import Path

import click
from covey_api.instance import Instance
from covey_api.kinds import Kind
from covey_api.placement import Placement
from covey_api.text import TRANSITIONS, escape_controls, find_section

from covey.commands.options import fleet_options, is_kind, namespace_of, namespace_option, parse_targets
from covey.connect import Where, open_fleet
from covey.connection import Connection
from covey.errors import CommandError, ExitCode
from covey.ports import JsonObject

# How often it is asked whether there is more; a person reads no faster.
FOLLOW_SECONDS = 1.0
# Of an overlap that is looked for first: long enough to be found once only.
_ANCHOR = 256
# Less in common may be chance: two lines' ends look alike.
_LEAST_OVERLAP = 32


@click.command()
@click.argument("target", nargs=-1, required=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--tail", type=click.IntRange(min=0), help="Lines to begin with; by default all that is kept for it.")
@click.option("--transitions", is_flag=True, help="What became of them instead, and why: their last 128 transitions.")
@namespace_option
@fleet_options
def logs(
    target: tuple[str, ...], follow: bool, tail: int | None, transitions: bool, namespace: str | None, where: Where
) -> None:
    """Show what engines print.

    TARGET is an instance's name, instance/NAME, or placement/NAME for all of its instances; their lines then begin
    with the instance's name. It is the last 128 KiB of each; keys are blanked, and lines in which an engine quotes a
    client are left out.
    """
    targets = parse_engines(target)
    if transitions and follow:
        raise CommandError("`--transitions` shows what was, so it can't be followed: leave `--follow` out")
    with open_fleet(where) as fleet:
        items = _ask(fleet, targets, namespace, captures=transitions)
        if transitions:
            items = [{**item, "text": find_section(item["text"], TRANSITIONS)} for item in items]
        failed = _tell_errors(items, set())
        is_prefixed = len(items) > 1 or any(kind is Placement for kind, _ in targets)
        for item in items:
            shown = whole_lines(item["text"]) if follow else item["text"]
            _print(item, _last_lines(shown, tail), is_prefixed)
        if follow:
            _follow(fleet, targets, namespace, items, is_prefixed)
    if failed:
        click.get_current_context().exit(ExitCode.FAILED)


@click.command()
@click.argument("target", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it here; else it is shown."
)
@namespace_option
@fleet_options
def capture(target: tuple[str, ...], output: Path | None, namespace: str | None, where: Where) -> None:
    """Show all that is known of an engine.

    It is what to send along with a question about it. TARGET as for `logs`. Of each engine: its last 128 transitions
    with their causes, its processes and what their threads wait in, its own metrics, its last output. Keys and tokens
    are blanked on the node.
    """
    targets = parse_engines(target)
    with open_fleet(where) as fleet:
        items = _ask(fleet, targets, namespace, captures=True)
    failed = _tell_errors(items, set())
    text = "\n".join(item["text"] for item in items if item["text"])
    if output is None:
        click.echo(escape_controls(text).rstrip("\n"))
    else:
        try:
            output.write_text(text)
        except OSError as error:
            raise CommandError(f"'{output}' can't be written: {error.strerror}") from None
    if failed:
        click.get_current_context().exit(ExitCode.FAILED)


def parse_engines(words: tuple[str, ...]) -> list[tuple[type[Kind], str]]:
    """As `parse_targets`; one name alone is an Instance's, as kubectl's `logs` takes a pod's."""
    if len(words) == 1 and "/" not in words[0] and not is_kind(words[0]):
        return [(Instance, words[0])]
    return parse_targets(words)


def whole_lines(text: str) -> str:
    """Without the line that isn't over yet."""
    return text[: text.rfind("\n") + 1]


def find_new(before: str, after: str) -> str | None:
    """What a tail has that an earlier tail of the same output didn't; None when they have nothing in common.

    Where an output repeats itself, the longest overlap counts.
    """
    if not before or after.startswith(before):
        return after[len(before) :]
    anchor = after[:_ANCHOR]
    start = before.find(anchor)
    while anchor and start >= 0:
        if after.startswith(before[start:]):
            return after[len(before) - start :]
        start = before.find(anchor, start + 1)
    return _find_short_overlap(before, after)


def _find_short_overlap(before: str, after: str) -> str | None:
    """Of an overlap shorter than the anchor: so much was printed meanwhile, or so little is there."""
    for length in range(min(_ANCHOR, len(before), len(after)), _LEAST_OVERLAP - 1, -1):
        if after.startswith(before[-length:]):
            return after[length:]
    return None


def _follow(
    fleet: Connection,
    targets: list[tuple[type[Kind], str]],
    namespace: str | None,
    items: list[JsonObject],
    is_prefixed: bool,
) -> None:
    """Until interrupted. What can't be asked now is asked again, and said once."""
    # Also where the shell that began it behind a `&` had it ignore that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    seen = {_key(item): whole_lines(item["text"]) for item in items}
    said: set[str] = set()
    while True:
        sys.stdout.flush()
        time.sleep(FOLLOW_SECONDS)
        try:
            items = _ask(fleet, targets, namespace)
        except CommandError as error:
            if error.code is ExitCode.NOTHING_MATCHED and not is_prefixed:
                raise
            _say_once(str(error), said)
            continue
        _tell_errors(items, said)
        for item in items:
            if item["error"]:
                continue
            text = whole_lines(item["text"])
            new = find_new(seen.get(_key(item), ""), text)
            if new is None:
                _say_once(f"some output of {item['instance']} came too fast to be shown", said)
            _print(item, text if new is None else new, is_prefixed)
            seen[_key(item)] = text


def _ask(
    fleet: Connection, targets: list[tuple[type[Kind], str]], namespace: str | None, *, captures: bool = False
) -> list[JsonObject]:
    ask = fleet.questions.capture if captures else fleet.questions.read_logs
    return [
        item
        for kind, name in targets
        for item in ask(kind.PLURAL, namespace_of(kind, namespace or fleet.namespace), name)
    ]


def _key(item: JsonObject) -> tuple[str, str]:
    return item["instanceId"], item["member"]


def _last_lines(text: str, count: int | None) -> str:
    if count is None:
        return text
    return "".join(text.splitlines(keepends=True)[-count:] if count else [])


def _print(item: JsonObject, text: str, is_prefixed: bool) -> None:
    prefix = f"[{item['instance'].partition('/')[2]}] " if is_prefixed else ""
    for line in text.splitlines():
        click.echo(prefix + escape_controls(line))


def _tell_errors(items: list[JsonObject], said: set[str]) -> bool:
    errors = [f"{item['instance']}: {item['error']}" for item in items if item["error"]]
    for error in errors:
        _say_once(error, said)
    return bool(errors)


def _say_once(words: str, said: set[str]) -> None:
    if words not in said:
        said.add(words)
        click.echo(f"covey: {escape_controls(words)}", err=True)
