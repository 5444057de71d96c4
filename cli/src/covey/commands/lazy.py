"""A group whose commands are imported when one is called: each needs other libraries, and all of them take a second."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Commands by the place that each is imported from, beside those that were added."""

    def __init__(self, *args: Any, places: Mapping[str, str], **given: Any) -> None:
        """`places`: `module:attribute` by the command's name, in the order of the help."""
        super().__init__(*args, **given)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._places, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
