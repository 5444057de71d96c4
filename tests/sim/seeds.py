"""Seeds that failed once, each with the name of what was wrong. They are run with the others, whatever is drawn there.

A seed decides a run together with the simulator's own code: where that changes, a seed may tell another story. The bug
itself is held by the unit test that came with its correction.
"""

FAILED_ONCE: dict[int, str] = {
    15: "a store lost under a running leader: members whose Instance had not been reported were doubled, not adopted",
    17: "the same, and a node was over-committed by the doubles",
    19: "the same, and a healthy engine was stopped without a note",
    35: "a member adopted under another name was looked for under its old one (by the simulator's own rules)",
    75: "a replica that its agent refused for want of memory was tried on that lane for ever, and another had room",
    92: "the same as 35",
    115: "a gateway whose stream broke as it was told to end went on for ever",
    136: "a leader that began while its store refused writes published no table: a dead engine stayed routed",
    156: "a door that was opened while the store failed was taken for closed: a swap stopped an engine in mid-request",
    894: "an old replica never made room on the one node left where the new revision had failed once",
    1494: "an engine that served was stopped in mid-request: its agent had lost its files and called it starting",
    2900: "a wedged engine's request was counted as cut by a swap (by the simulator's own rules)",
    1_000_048: "a donor that its driver never reached was kept for ever when the store was lost meanwhile",
    2761: "an engine that became ready while its agent was paused was stopped for the time that the agent had lost",
    2873: "a header that was still to be read again was taken for a fleet at rest (by the simulator's own rules)",
    3353: "a roll whose new revision is larger than any old replica and what is free beside it never went on",
    3370: "what was deleted while its node was silent held memory there, which others were given as the node came back",
    1_000_232: "a group's promise on one node was held against another's facts (by the simulator's own rules)",
    3700: "a node whose stream was broken was given up in spite of its reports",
}
