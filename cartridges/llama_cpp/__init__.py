"""llama.cpp as a cartridge: one process for each GGUF model of a folder. `SPEC` is what discovery reads.

Nothing here imports the engine; a process does when its first request comes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from capdag.cartridge.spec import Record, SettingsOf, Spec
from capdag.models import check_slugs, list_models

from .serving import NAME, add_model, new_cartridge
from .settings import OPENMP, read_settings


def records(models_dir: Path, settings_of: SettingsOf) -> list[Record]:
    """Return one record for each model in the folder, broken ones too: their first request tells what is wrong.

    Left out are those whose path is no text: it could be told to no process.
    Raises ConfigError where two models would have one slug, and for a wrong setting.
    """
    models = [model for model in list_models(models_dir) if model.has_text_path]
    check_slugs(models)
    return [
        record_of(f"{NAME}/{model.slug}", {"model": model.name, "path": str(model.path), **settings_of(model.name)})
        for model in models
    ]


def record_of(record_id: str, settings: dict[str, object]) -> Record:
    """Return the record of one model. Raises ConfigError for a wrong setting."""
    cartridge = new_cartridge()
    urns = add_model(cartridge, read_settings(settings))
    caps = [cap for group in cartridge.manifest()["cap_groups"] for cap in group["caps"]]
    return Record(record_id, [cap for cap in caps if cap["urn"] in urns], settings)


SPEC = Spec(
    name=NAME,
    command=(sys.executable, "-m", "capdag.cartridge", "cartridges.llama_cpp.main"),
    requires=("xllamacpp",),
    records=records,
    libraries=(OPENMP,) if sys.platform == "linux" else (),
)
