"""Why the gateway can't start or go on; the words are for a person."""


class StartError(Exception):
    """Nothing is served, or nothing may be: the process ends with these words."""
