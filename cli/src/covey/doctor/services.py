"""Covey's own services on this machine: whether what was installed runs."""

from covey.doctor.finding import Finding, Level, ok
from covey.doctor.place import Place
from covey.errors import CommandError
from covey.service.files import read_service_file
from covey.service.managers import Launchd, State, Systemd, choose_manager
from covey.service.roles import ROLES
from covey.service.sealed import Hand, find_state, judge_hand


def look_at_services(place: Place) -> list[Finding]:
    user = choose_manager(place.environment, place.home, named=None, is_system=False)
    managers = [user, Systemd(place.environment, place.home, is_system=True)] if isinstance(user, Systemd) else [user]
    findings = [found for manager in managers for role in ROLES if (found := _look(manager, role))]
    return findings or [
        ok("service", "no service is installed: Covey runs while somebody runs it (`covey service install`)")
    ]


def _look(manager: Systemd | Launchd, role: str) -> Finding | None:
    path = manager.path(role)
    try:
        text = read_service_file(path)
    except CommandError as error:
        return Finding("service", Level.WARNING, str(error), "what it says isn't known")
    if text is None:
        return None
    status = manager.observe(role, find_state(text))
    edited = " (edited by hand)" if judge_hand(text) is Hand.EDITED else ""
    if status.state in (State.FAILED, State.UNKNOWN, State.STOPPED):
        words = f"'{path}'{edited} is installed and not running: {status.state.value}, {status.words}"
        return Finding(
            "service", Level.WARNING, words, "this machine serves nothing by it", f"see `{status.log_place}`"
        )
    if not status.is_enabled:
        words = f"'{path}'{edited} runs, and isn't started with the machine"
        return Finding(
            "service", Level.WARNING, words, "it is gone after a restart", f"`covey service install {role} …`"
        )
    return ok("service", f"'{path}'{edited} runs")
