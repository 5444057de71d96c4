"""The planner: who runs what, in how many bytes, and why not. Pure: no I/O, no clock, no chance.

Used by the controller (decides), the agent (checks the stamped bytes against fresh memory) and the CLI (explains).
"""
