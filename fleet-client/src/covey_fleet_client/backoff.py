"""The schedule of retries towards the controller: pure; who waits and where chance comes from is the caller's."""

from dataclasses import dataclass

# The first retry is felt as immediate; the longest keeps a fleet of hundreds from drowning a controller that starts.
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0


@dataclass(slots=True)
class Backoff:
    """Doubling delays with jitter: between half and the whole of 0.2 s, 0.4 s, … 10 s."""

    failures: int = 0

    def next_delay_seconds(self, jitter: float) -> float:
        """Delay before the next try; `jitter` is a random number in [0, 1)."""
        # 2**6 x 0.2 s is beyond the longest: a bigger exponent would only overflow one day.
        whole = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** min(self.failures, 6))
        self.failures += 1
        return whole * (0.5 + jitter / 2)

    def reset(self) -> None:
        """A try succeeded."""
        self.failures = 0
