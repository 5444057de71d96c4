"""This machine's clock: whether anything sets it, and how far it is from the controller's."""

import http.client
import sys
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from covey_api.messages import FLEET_PREFIX
from covey_fleet_client.join import NOTABLE_SKEW_SECONDS

from covey.doctor.finding import Finding, Level, ok
from covey.doctor.place import Place
from covey.doctor.programs import ask_tool
from covey.doctor.unchecked import unchecked_connection

# Certificates are dated a day back: a clock that is slower than that finds the controller's not valid yet. They last
# for 90 days and are renewed after 30: a clock that is ahead by less than the 60 that are left finds each one valid.
_BEHIND_SECONDS = 86_400.0
_AHEAD_SECONDS = 60 * 86_400.0
_CALL_SECONDS = 6.0


def look_at_clock(place: Place) -> list[Finding]:
    findings = [_look_at_setting()]
    if place.controller_url:
        findings.append(_compare(place.controller_url))
    return findings


def _look_at_setting() -> Finding:
    if sys.platform != "linux":
        return ok("clock", "whether this clock is set by a time server isn't known; macOS does by default")
    said = ask_tool("timedatectl", "show", "--property=NTPSynchronized", "--value")
    answer = said.text.strip() if said and said.status == 0 else ""
    if answer == "yes":
        return ok("clock", "this clock is set by a time server")
    if answer == "no":
        return Finding(
            "clock",
            Level.WARNING,
            "this clock isn't set by a time server",
            "once it is a day behind no certificate is valid yet, and times in logs and states mislead before that",
            "`timedatectl set-ntp true`",
        )
    return ok("clock", "whether this clock is set by a time server isn't known (`timedatectl` doesn't say)")


def _compare(url: str) -> Finding:
    try:
        skew = measure_skew(url)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return ok("clock", f"the controller's clock can't be compared: {error or type(error).__name__}")
    return judge_skew(skew)


def measure_skew(url: str) -> float:
    """Seconds by which this clock is ahead of the controller's, to a second or two.

    Its certificate isn't checked: by a wrong clock it may seem not to be valid.
    """
    parts = urlsplit(url)
    connection = unchecked_connection(parts.hostname or "", parts.port or 443, _CALL_SECONDS)
    try:
        began = time.time()
        connection.request("GET", f"{FLEET_PREFIX}/authority")
        told = connection.getresponse().getheader("date", "")
        return (began + time.time()) / 2 - parsedate_to_datetime(told).timestamp()
    finally:
        connection.close()


def judge_skew(ahead_seconds: float) -> Finding:
    off = abs(ahead_seconds)
    if off < NOTABLE_SKEW_SECONDS:
        return ok("clock", "this clock agrees with the controller's")
    words = f"this clock is {describe_seconds(off)} {'ahead of' if ahead_seconds > 0 else 'behind'} the controller's"
    fix = "set both by a time server: `timedatectl set-ntp true`"
    if -_BEHIND_SECONDS < ahead_seconds < _AHEAD_SECONDS:
        return Finding("clock", Level.WARNING, words, "times in logs and states of this machine mislead", fix)
    return Finding("clock", Level.BROKEN, words, "certificates seem expired, or not valid yet", fix)


def describe_seconds(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
