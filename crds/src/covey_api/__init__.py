"""The contract between Covey's parts and its users: kinds, messages, units, conditions, reasons. No I/O.

Everything here is frozen. Documents that people write (`meta.Document`) refuse unknown fields; messages between our own
parts, stored objects and status (`meta.Message`) ignore them, so that neighbouring versions work together.
"""
