"""A program's commands, with those that are announced and not built yet: they say so, and exit with 2."""

from typing import Any, ClassVar, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

_USAGE: Final = 2


class Announcing(TyperGroup):
    """The commands of a program. A name of `not_built` that has no command yet is answered as such."""

    not_built: ClassVar[tuple[str, ...]] = ()

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] in self.not_built and self.get_command(ctx, args[0]) is None:
            typer.echo(f"{self.name}: the command {args[0]} is not built yet", err=True)
            raise typer.Exit(_USAGE)
        return super().resolve_command(ctx, args)
