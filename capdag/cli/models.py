"""`capdag models`: what is in the models folder, and how a model gets there."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ._options import config_option, models_option, settle_config


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
    from ._settings import models_folder

    ctx.obj = models_folder(settle_config(config_file, models_dir=models_dir))
    if ctx.invoked_subcommand is None:
        _list(ctx.obj)


def _list(folder: Path) -> None:
    from capdag.models import list_models

    from ._report import show_size

    click.echo(f"models in {folder}:")
    found = list_models(folder)
    for model in found:
        facts = model.facts
        if facts is None:
            click.echo(f"  {model.name}  {show_size(model.size)}  BROKEN: {model.problem}")
        else:
            context = f"context {facts.context_length:,} tokens" if facts.context_length else "context not stated"
            click.echo(
                "  ".join([f"  {model.name}", show_size(model.size), context, facts.architecture, facts.quantisation])
            )
    if not found:
        click.echo("  none; `capdag models fetch` brings a small one, or put a .gguf file there")


@models.command("fetch")
@click.argument("name", required=False)
@models_option
@click.pass_obj
def fetch_model(folder: Path, name: str | None, models_dir: str | None) -> None:
    """Bring a model of the catalogue, checked by its SHA-256.

    NAME is SmolLM2-135M-Instruct unless given. A model that is there and right is not brought again.
    """
    from capdag.models import CATALOG, DEFAULT_MODEL, fetch

    name = name or DEFAULT_MODEL
    entry = CATALOG.get(name)
    if entry is not None:
        click.echo(f"{entry.name}: {entry.title} ({entry.licence})", err=True)
    with click.progressbar(length=1000, label=name, file=sys.stderr) as bar:

        def advance(done: int, total: int) -> None:
            bar.update(done * 1000 // total - bar.pos)

        fetched = fetch(name, Path(models_dir).expanduser() if models_dir else folder, advance)
    click.echo(f"{fetched.path} {'has been brought' if fetched.brought else 'is there already, and right'}")
