"""`covey doctor`: what a machine needs to be a node, looked at on the machine itself (ADR 43)."""
