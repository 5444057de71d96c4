"""The subcommands, grouped by what they speak to."""
