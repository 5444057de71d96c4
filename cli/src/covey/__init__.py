"""The `covey` command. It composes the parts; it decides nothing that they decide."""
