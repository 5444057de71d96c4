"""Servers of ours around engines that are libraries. They run in the engine's environment, never in the agent.

They import the standard library, their own modules, and the engine. What they hold for all engines (see `web`): one
served name, the Instance's key, a prompt too long refused before prefill with both counts, `/health`, `/tokenize`.
"""
