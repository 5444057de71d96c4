"""A process whose clock is wrong: a library before the C one, so that Python and TLS are told the same.

`time.time` alone would leave OpenSSL with the right time, and it is to judge certificates by the wrong one. Clocks
that only go forward (monotonic) are left alone, as by a person who sets the time.
"""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

_SOURCE = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) { const char *text = getenv("CLOCK_SHIFT"); return text ? atol(text) : 0; }

int clock_gettime(clockid_t clock, struct timespec *found) {
    int status = syscall(SYS_clock_gettime, clock, found);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += shift();
    return status;
}

int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


@cache
def _library() -> Path:
    folder = Path(mkdtemp(prefix="covey-clock-"))
    (folder / "clock.c").write_text(_SOURCE)
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, folder / "clock.c"], check=True, timeout=60)
    return library


def can_be_wrong() -> bool:
    return shutil.which("cc") is not None


def wrong_clock(ahead_seconds: int) -> dict[str, str]:
    """Variables of a process that is to live so far ahead; negative: behind."""
    return {"LD_PRELOAD": str(_library()), "CLOCK_SHIFT": str(ahead_seconds)}
