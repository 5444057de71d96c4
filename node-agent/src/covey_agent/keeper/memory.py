"""Who dies when the machine's memory is used up: an engine, before its keeper, its agent, and everybody else.

The kernel ends the process that it takes for the largest. While an engine grows that can be somebody's browser, or
another engine that has just what was planned. Alternatives:

- A control group for each engine: where a service manager delegates one there is one too (`covey_agent.keeper.group`).
  Containers and most sessions refuse it.
- `RLIMIT_AS`: counts what is mapped, not what is used; a driver maps more than there is.
- This: each engine asks for a place further in front. It needs no right, and holds in containers too.

It is added to what the agent was given, so that a pod that a cluster protects stays behind those that it doesn't.
"""

import contextlib

# In thousandths of the memory there is, by which the kernel takes an engine for larger than it is.
AHEAD = 300
MOST = 1000
_SCORE = "/proc/self/oom_score_adj"


def stand_in_front() -> None:
    """Of this process and its children to come. Nothing happens where the system has no such thing."""
    with contextlib.suppress(OSError, ValueError):
        with open(_SCORE) as file:
            given = int(file.read())
        with open(_SCORE, "w") as file:
            file.write(str(min(MOST, given + AHEAD)))
