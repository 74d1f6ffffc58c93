"""`capdag models`: what is in the models folder, and how a model gets there."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from capdag.errors import ConfigError

from ._options import config_option, models_option, settle_config
from ._saying import say


@click.group(invoke_without_command=True)
@config_option
@models_option
@click.pass_context
def models(ctx: click.Context, config_file: Path | None, models_dir: str | None) -> None:
    """List the model files, or fetch one.

    \b
    Examples:
      capdag models                               what is there, and what is wrong with it
      capdag models fetch                         bring SmolLM2-135M-Instruct (94 MB)
      capdag models fetch --models ~/weights      into another folder
    """
    from ._settings import checked_models_folder

    ctx.obj = (config_file, models_dir)
    if ctx.invoked_subcommand is None:
        _list(checked_models_folder(settle_config(config_file, models_dir=models_dir)))


def _list(folder: Path) -> None:
    from capdag.models import check_slugs, list_models

    from ._report import show_no_models, show_size

    say(f"models in {folder}:")
    found = list_models(folder)
    for model in found:
        facts = model.facts
        if facts is None:
            say(f"  {model.name}  {show_size(model.size)}  BROKEN: {model.problem}")
        else:
            context = f"context {facts.context_length:,} tokens" if facts.context_length else "context not stated"
            say("  ".join([f"  {model.name}", show_size(model.size), context, facts.architecture, facts.quantisation]))
    if not found:
        say(show_no_models(folder))
    try:
        check_slugs(found)
    except ConfigError as error:
        say(f"  CONFLICT: {error}")


class _Fetch(click.Command):
    """Its help ends with the catalogue."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        from capdag.models import CATALOG

        with formatter.section("Models"):
            formatter.write_dl([(entry.name, f"{entry.title} ({entry.licence})") for entry in CATALOG.values()])


@models.command("fetch", cls=_Fetch)
@click.argument("name", required=False)
@config_option
@models_option
@click.pass_obj
def fetch_model(
    outer: tuple[Path | None, str | None], name: str | None, config_file: Path | None, models_dir: str | None
) -> None:
    """Bring a model of the catalogue, checked by its SHA-256.

    NAME is SmolLM2-135M-Instruct unless given. A model that is there and right is not brought again.
    """
    from capdag.models import CATALOG, DEFAULT_MODEL, fetch

    from ._settings import models_folder

    outer_file, outer_dir = outer
    folder = models_folder(settle_config(config_file or outer_file, models_dir=models_dir or outer_dir))
    name = name or DEFAULT_MODEL
    entry = CATALOG.get(name)
    if entry is not None:
        say(f"{entry.name}: {entry.title} ({entry.licence})", err=True)
    with click.progressbar(length=1000, label=name, file=sys.stderr) as bar:

        def advance(done: int, total: int) -> None:
            bar.update(done * 1000 // total - bar.pos)

        fetched = fetch(name, folder, advance)
    say(f"{fetched.path} {'has been brought' if fetched.brought else 'is there already, and right'}")
