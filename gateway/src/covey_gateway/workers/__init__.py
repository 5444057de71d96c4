"""Several processes that are one gateway (`--workers`, ADR 56). Loaded only where there are any."""
