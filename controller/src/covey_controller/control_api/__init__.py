"""The control API (`/api/v1`): what the command asks and changes, over a Unix socket of this machine's user."""
