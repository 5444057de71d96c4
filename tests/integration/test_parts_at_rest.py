"""What Covey does when there is nothing to do: next to nothing.

CPU seconds say more of the machine than of the code, so what is counted is how often each part wakes up.
"""

import time

import psutil
import pytest
from kit.fleet import running_fleet
from kit.parts import AGENT, CONTROLLER, GATEWAY, count_wakeups, members, part_pid

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# The first reports, a certificate's check, connections that were opened for the start alone.
SETTLE_SECONDS = 20.0
COUNTED_SECONDS = 20.0
# Wakeups per second of all threads, about twice what was counted. A beat of the fleet API is two for who sends it and
# two for who answers, four times a second's quarter; the controller also looks at its source, with a thread, every 5 s.
# One clock of a quarter of a second, or one thread that polls, breaks any of them.
MOST_PER_SECOND = {CONTROLLER: 5.0, AGENT: 2.5, GATEWAY: 2.0}


def test_parts_of_a_fleet_at_rest_hardly_wake_up() -> None:
    with running_fleet() as fleet:
        time.sleep(SETTLE_SECONDS)
        parts = {name: [psutil.Process(part_pid(fleet, name))] for name in MOST_PER_SECOND}
        keepers = [psutil.Process(member.keeper_pid) for member in members(fleet)]
        before = {name: count_wakeups(part) for name, part in parts.items()}, count_wakeups(keepers)
        time.sleep(COUNTED_SECONDS)
        rates = {name: (count_wakeups(part) - before[0][name]) / COUNTED_SECONDS for name, part in parts.items()}
        assert all(rates[name] <= most for name, most in MOST_PER_SECOND.items()), rates
        assert count_wakeups(keepers) - before[1] <= COUNTED_SECONDS
