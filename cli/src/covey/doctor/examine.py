"""All checks at once, each on a thread of its own with a deadline.

A thread that hangs (in a dead file system, say) can't be ended: it is told and left behind, as a daemon, so that the
command ends all the same. A check that fails is a finding too; one that is silent would be taken for health.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Thread

from covey.doctor.finding import Finding, Level
from covey.doctor.place import Place

# Tools answer within 4 s, a call of the fleet within 10 s.
CHECK_SECONDS = 15.0
MEND_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    look: Callable[[Place], list[Finding]]
    seconds: float = CHECK_SECONDS


@dataclass(slots=True)
class _Look:
    """Of one thread: what it found, once it is done."""

    check: Check
    place: Place
    found: list[Finding] = field(default_factory=list[Finding])
    is_done: bool = False

    def run(self) -> None:
        try:
            self.found = self.check.look(self.place)
        except Exception as error:
            words = f"this check failed: {type(error).__name__}: {error}"
            consequence = "what it looks at isn't known to work"
            self.found = [Finding(self.check.name, Level.BROKEN, words, consequence, "tell us, with these words")]
        self.is_done = True


def examine(checks: Sequence[Check], place: Place) -> list[Finding]:
    """Every check's findings in the order of the checks; at most as long as the slowest may take."""
    began = time.monotonic()
    looks = [_Look(check, place) for check in checks]
    threads = [Thread(target=look.run, daemon=True, name=f"doctor-{look.check.name}") for look in looks]
    for thread in threads:
        thread.start()
    findings: list[Finding] = []
    for look, thread in zip(looks, threads, strict=True):
        thread.join(max(0.0, began + look.check.seconds - time.monotonic()))
        findings += look.found if look.is_done else [_silent(look.check)]
    return findings


def _silent(check: Check) -> Finding:
    words = f"no answer within {check.seconds:.0f} s"
    consequence = "what Covey asks there hangs too: a driver, a disk or a network that is stuck"
    return Finding(check.name, Level.BROKEN, words, consequence, "look at the kernel's log; restart what is stuck")


def mend(findings: Iterable[Finding]) -> list[str]:
    """Do what is safe; the words for each. One that fails is found again by the next look."""
    done: list[str] = []
    for finding in findings:
        if finding.mend is None:
            continue
        failures: list[OSError] = []
        thread = Thread(target=_try, args=(finding.mend, failures), daemon=True)
        thread.start()
        thread.join(MEND_SECONDS)
        if not thread.is_alive() and not failures:
            done.append(f"{finding.check}: {finding.fix}")
    return done


def _try(action: Callable[[], None], failures: list[OSError]) -> None:
    try:
        action()
    except OSError as error:
        failures.append(error)
