"""The models that hosts offer, read from the capabilities they advertise (contracts: Capabilities of inference)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from capdag.urn import CapUrn, MediaUrn

_OUTSIDE_SLUG = re.compile(r"[^a-z0-9._/:-]")
_OPERATIONS = ("chat", "completion")


class Offer(Protocol):
    """One advertised capability: its URN and the cap object of the manifest."""

    @property
    def urn(self) -> CapUrn: ...

    @property
    def facts(self) -> Any: ...


class Model(NamedTuple):
    """One model as `/v1/models` shows it. `created` is in unix seconds, 0 where nobody says."""

    id: str
    slug: str
    created: int
    owned_by: str

    def as_json(self) -> dict[str, Any]:
        """Return the OpenAI model object."""
        return {"id": self.id, "object": "model", "created": self.created, "owned_by": self.owned_by}


def slug_of(model_id: str) -> str:
    """Return the tag value that stands for a model id in a cap URN."""
    return _OUTSIDE_SLUG.sub("-", model_id.lower())


@lru_cache(1024)
def request_cap(operation: str, slug: str) -> str:
    """Return the cap URN that asks for `operation` (chat or completion) of one model."""
    asked = MediaUrn.parse(f"media:{operation}-request;enc=utf-8;fmt=json;record")
    given = MediaUrn.parse(f"media:{operation}-event;list;record")
    return str(CapUrn(asked, given, tags={operation: "*", "model": slug}))


def list_models(offers: Iterable[Offer]) -> list[Model]:
    """Return every model on offer once, in the order of their ids, whoever offers it and in whatever order."""
    found: dict[str, Model] = {}
    for offer in offers:
        slug = offer.urn.tags.get("model")
        if slug is None or not any(operation in offer.urn.tags for operation in _OPERATIONS):
            continue
        found.setdefault(slug, _model_of(slug, offer.facts.get("metadata")))
    return sorted(found.values(), key=lambda model: (model.id.lower(), model.id))


def _model_of(slug: str, metadata: Any) -> Model:
    facts = metadata if isinstance(metadata, dict) else {}
    model_id, created, owner = facts.get("model"), facts.get("created"), facts.get("owned_by")
    return Model(
        model_id if isinstance(model_id, str) and slug_of(model_id) == slug else slug,
        slug,
        created if isinstance(created, int) else 0,
        owner if isinstance(owner, str) else "capdag",
    )


def find_model(offers: Iterable[Offer], model_id: str) -> Model | None:
    """Return the model that `model_id` means, or None: case and the characters outside a slug do not count."""
    slug = slug_of(model_id)
    return next((model for model in list_models(offers) if model.slug == slug), None)
