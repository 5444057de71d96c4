"""The keeper: parent of one member's engine. It outlives the agent. This file is only its start:

    python -I -S keeper.py FOLDER

Everything it needs is in FOLDER, so that nothing secret is in an argument list and a dead agent changes nothing:

    launch.json   read    instanceId, attempt, port, argv, environment, orphanGraceSeconds,
                          memoryBytes, front, group
    keeper.lock   flock   held for the keeper's whole life; the lock is the proof, the file's content means nothing
    keeper.json   written who runs: pids with their start times, and the front's port
    k.sock        bound   newline-delimited JSON, see `Asking.answer`
    output.log    written the last 1 to 2 MiB of output, with output.log.1
    front.log     written whom the TLS front refused, and why, and which neighbour ended; with front.log.1
    exit.json     written how the engine ended, before anybody is told

It runs without site-packages (`-I -S`) and imports the standard library and its own modules alone, since there is one
per member: about 10 MB each. All of them are imported at the start: a keeper lives for months, and what lies on the
disk by then may be of another version.
"""

import os
import sys

if __name__ == "__main__":
    # At the end: nothing that is installed beside this package may stand before the standard library.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
    from covey_agent.keeper.launcher import main

    sys.exit(main())
