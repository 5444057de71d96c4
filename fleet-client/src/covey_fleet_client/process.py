"""What every part's process does at its start: log lines of one form, and as many open files as it may have."""

import logging
import resource
import sys

from covey_api.text import escape_controls

logger = logging.getLogger(__name__)

# A gateway's connections: a client's and an engine's each, for some thousand streams at a time.
ENOUGH_FILES = 8192
# OPEN_MAX of macOS: "unlimited", which is its usual hard limit, it refuses as a soft one.
MACOS_FILES = 10_240


class _LineFormatter(logging.Formatter):
    """One line per record, tracebacks too: whoever reads lines (`covey up`, journald) sees whole records."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record)).replace("\n", "\\n")


def start_logging(part: str) -> None:
    """Records of INFO and above to standard error, as `TIME PART LEVEL MESSAGE`."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(_LineFormatter(f"%(asctime)s {part} %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[stream])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every call


def raise_file_limit() -> None:
    """Each member, transfer and connection takes descriptors; the soft limit is often 1024 or, on macOS, 256.

    Where the hard limit is low too, that is said once: a part that runs out of descriptors refuses connections, and
    nothing in that refusal names the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and not _apply_limit(hard, hard) and 0 <= soft < MACOS_FILES:
        _apply_limit(MACOS_FILES, hard)
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= now < ENOUGH_FILES:  # -1: unlimited
        logger.warning(
            "this process may open %d files, and should be able to open %d: raise the hard limit (`ulimit -Hn`, "
            "`LimitNOFILE=` of its service), or it refuses connections when it is busy",
            now,
            ENOUGH_FILES,
        )


def _apply_limit(soft: int, hard: int) -> bool:
    """Whether it was granted."""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except (ValueError, OSError):
        return False
    return True
