"""Builders, fakes and virtual time for tests. Builders are valid by default; a test states only what it is about."""
