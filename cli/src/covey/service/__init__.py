"""`covey service`: one part, or `covey up` or `covey join`, as a service of this machine's own manager."""
