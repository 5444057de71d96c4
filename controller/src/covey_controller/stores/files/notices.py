"""What people should know about a source that is no error in it. Pure words, the same for the same state."""

from covey_controller.stores.files.rest import Rest

# The safety net under the watch: one `stat` per file, so often.
LOOK_SECONDS = 5.0
# A source that doesn't rest for so long is worth a word: nothing of it is read meanwhile.
UNREST_SECONDS = 30.0


def render_notices(rest: Rest, source: str, fault: str, watch_fault: str, now: float, *, place: str = "") -> list[str]:
    """`place`: where in the source documents are looked for, in words, if that is not the whole of it."""
    notices: list[str] = []
    read = rest.read
    if fault:
        notices.append(fault)
    if watch_fault:
        notices.append(f"'{source}' can't be watched: changes are seen up to {LOOK_SECONDS:.0f} s later")
    if read is not None and not read.errors and not read.documents:
        found = "is missing" if read.is_missing else "holds no object"
        kept = (
            "nothing was deleted, what ran keeps running. To let an empty source delete, start with `--allow-empty`; "
            "to stop single objects, delete them by name"
            if rest.is_kept_empty
            else "nothing is asked for"
        )
        whole = f"source '{source}'"
        notices.append(f"{place or whole} {found}: {kept}")
    if read is None and now - rest.unrest_since > UNREST_SECONDS:
        notices.append(f"source '{source}' keeps changing: it is read once it has rested")
    return notices
