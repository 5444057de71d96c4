"""A scenario's outcome in words for people: what happened when and why, and what holds at the end.

Seconds are whole: what comes a tenth later since the last change of a scenario is no difference worth reading.
"""

from collections.abc import Iterator

from covey_simulator.accounts import ANSWERED, Entry, ModelAccount, Shortage, name_object
from covey_simulator.outcome import Away, Outcome, Served


def render_report(outcome: Outcome) -> str:
    return "\n".join((*_render_timeline(outcome), "", *_render_end(outcome))) + "\n"


def _render_timeline(outcome: Outcome) -> Iterator[str]:
    pace = outcome.scenario.pace
    yield (
        f"Assumed: engines load {pace.load_mib_per_second} MiB/s, nodes download {pace.download_mib_per_second} MiB/s; "
        f"seed {outcome.scenario.seed}."
    )
    if outcome.start_unsettled:
        yield f"The fleet starts, and has not settled within {outcome.start_seconds:.0f} s: {outcome.start_unsettled}"
    else:
        yield "The fleet starts; time counts from when it has been settled for 15 s:"
    before = [each for each in outcome.entries if each.at < 0]
    yield from (_render_entry(each) for each in before)
    yield "From then on:"
    after = outcome.entries[len(before) :]
    yield from (_render_entry(each) for each in after)
    if not after:
        yield "    nothing happens"


def _render_entry(entry: Entry) -> str:
    reason = f"{entry.reason}: " if entry.reason else ""
    return f"  {entry.at:6.0f} s  {entry.who:<18} {reason}{entry.message}"


def _render_end(outcome: Outcome) -> Iterator[str]:
    state = f"not settled: {outcome.unsettled}" if outcome.unsettled else "settled"
    yield f"At the end, after {outcome.seconds:.0f} s: {state}."
    for broken in outcome.violations:
        yield f"  A rule of safety was broken: {broken}"
    for each in outcome.placements:
        yield from _render_served(each)
    for away in outcome.away:
        yield f"  node '{away.node}' {_explain_away(away)}"
    for model, account in outcome.models.items():
        yield f"  requests for '{model}': {_render_account(account)}"


def _render_served(each: Served) -> Iterator[str]:
    where = f" on {_list(each.nodes)}" if each.nodes else ""
    yield f"  {name_object(each.key)}: {each.serving} of {each.wished} replicas serve{where}"
    if not each.is_ready:
        yield f"      {each.reason}: {each.message}"
    for shortage in each.shortages:
        yield f"      {_render_shortage(shortage)}"


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _render_shortage(shortage: Shortage) -> str:
    missing = f"{shortage.most} replica{'s' if shortage.most > 1 else ''} short"
    if shortage.until is None:
        return f"{missing} since {shortage.since:.0f} s"
    seconds = max(1.0, shortage.until - shortage.since)
    return f"{missing} for {seconds:.0f} s, from {shortage.since:.0f} s on"


def _explain_away(away: Away) -> str:
    if not away.is_on:
        return "is dead"
    runs = f"; it still runs {_list(away.instances)}" if away.instances else ""
    return f"has no network{runs}"


def _render_account(account: ModelAccount) -> str:
    lost = ", ".join(f"{count} x {name}" for name, count in sorted(account.outcomes.items()) if name != ANSWERED)
    count = account.asked - account.answered
    return f"{account.asked} asked, {account.answered} answered, {count} lost{f' ({lost})' if lost else ''}"
