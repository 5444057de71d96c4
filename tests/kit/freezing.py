"""One thread of a process stops, and the others live on: as when a driver never comes back. Linux, and only one's own.

By `ptrace`: there is no signal to one thread, `SIGSTOP` stops them all. Whoever attached must live on for as long.
"""

import ctypes
import os

_SEIZE, _INTERRUPT = 0x4206, 0x4207
# `__WALL`: also threads that are not one's children.
_EVERY_KIND = 0x40000000


def freeze_thread(thread_id: int) -> None:
    """Until this process ends, or that one. OSError where the system forbids it."""
    system = ctypes.CDLL(None, use_errno=True)
    for request in (_SEIZE, _INTERRUPT):
        if system.ptrace(ctypes.c_long(request), ctypes.c_long(thread_id), None, None) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"thread {thread_id} can't be frozen: {os.strerror(number)}")
    os.waitpid(thread_id, _EVERY_KIND)
