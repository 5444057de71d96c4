"""`make bench`: every benchmark in turn, and the page of what was measured. See `__main__`."""
