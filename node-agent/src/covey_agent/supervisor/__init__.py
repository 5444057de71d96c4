"""The supervisor: `step(state, event, now) -> (state, effects)`, pure. What each member does next, and nothing else.

It must not know processes, sockets, files or clocks. Slow work happens in the shell (`covey_agent.runtime`); the end of
each is an event. Times are seconds of one monotonic clock that lives as long as the machine's boot.
"""
