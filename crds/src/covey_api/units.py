"""Quantities: bytes are ints inside, Kubernetes-style strings (`16Gi`) in documents, GiB in text for people."""

import re
from typing import Annotated

from pydantic import Field

QUANTITY_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,3})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
Quantity = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=24)]

_FACTORS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_QUANTITY = re.compile(QUANTITY_PATTERN)


def parse_quantity(text: str) -> int:
    """Bytes in a quantity such as `512Mi` or `1.5Gi`, rounded down. ValueError says what must hold."""
    if not _QUANTITY.match(text):
        raise ValueError(f"quantity must be digits with an optional suffix such as 'Mi' or 'Gi'; got '{text}'")
    digits = text.rstrip("kKMGTPi")
    whole, _, fraction = digits.partition(".")
    factor = _FACTORS[text[len(digits) :]]
    return int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


def format_bytes(count: int) -> str:
    """Bytes for people: `755.0 MiB`, `1.3 GiB`; exact below one KiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{int(size)} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable: TiB ends the loop")


def format_progress(done_bytes: int, total_bytes: int, bytes_per_second: int) -> str:
    """A transfer for people: `1.0 GiB of 4.0 GiB, 100.0 MiB/s, 31 s left`."""
    amount = f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}, {format_bytes(bytes_per_second)}/s"
    left = seconds_left(done_bytes, total_bytes, bytes_per_second)
    return amount if left is None else f"{amount}, {format_seconds(left)} left"


def seconds_left(done_bytes: int, total_bytes: int, bytes_per_second: int) -> int | None:
    """At the present rate; None: nothing moves, or nothing is left."""
    left_bytes = total_bytes - done_bytes
    return -(-left_bytes // bytes_per_second) if bytes_per_second > 0 and left_bytes > 0 else None


def format_seconds(seconds: int) -> str:
    """`45 s`, `3 min`, `2 h 5 min`: as exact as anybody waits."""
    if seconds < 120:
        return f"{seconds} s"
    minutes = -(-seconds // 60)
    hours, rest = divmod(minutes, 60)
    return f"{minutes} min" if minutes < 120 else f"{hours} h {rest} min"
