"""The models that hosts offer, read from the capabilities they advertise (contracts: Capabilities of inference)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from capdag.client import Capability
from capdag.urn import CapUrn, MediaUrn

from .errors import ApiError

_OUTSIDE_SLUG = re.compile(r"[^a-z0-9._/:-]")
_OPERATIONS = frozenset({"chat", "completion"})
_LISTED = 20
"""Most models that an error names."""

_END_OF_TIME = 2**53
"""Unix seconds that no JSON reader takes for another number: what a manifest says may be any."""


class Model(NamedTuple):
    """One model on offer. `created` is in unix seconds, 0 where nobody says; `operations`: chat, completion."""

    id: str
    slug: str
    created: int
    owned_by: str
    operations: frozenset[str]

    def as_json(self) -> dict[str, Any]:
        """Return the OpenAI model object."""
        return {"id": self.id, "object": "model", "created": self.created, "owned_by": self.owned_by}


def slug_of(model_id: str) -> str:
    """Return the tag value that stands for a model id in a cap URN."""
    return _OUTSIDE_SLUG.sub("-", model_id.lower())


@lru_cache(1024)
def request_cap(operation: str, slug: str | None, abilities: frozenset[str] = frozenset()) -> str:
    """Return the cap URN that asks for `operation` (chat or completion) with `abilities` of one model, None: of any."""
    asked = MediaUrn.parse(f"media:{operation}-request;enc=utf-8;fmt=json;record")
    given = MediaUrn.parse(f"media:{operation}-event;list;record")
    tags = dict.fromkeys((operation, *abilities), "*")
    return str(CapUrn(asked, given, tags=tags if slug is None else {**tags, "model": slug}))


def list_models(capabilities: Iterable[Capability]) -> list[Model]:
    """Return every model on offer once, in the order of their ids, whoever offers it and in whatever order."""
    found: dict[str, Model] = {}
    for capability in capabilities:
        tags = capability.urn.tags
        operations = _OPERATIONS.intersection(tags)
        if "model" not in tags or not operations:
            continue
        model = _model_of(tags["model"], capability.facts.get("metadata"), operations)
        known = found.get(model.slug)
        found[model.slug] = model if known is None else known._replace(operations=known.operations | operations)
    return sorted(found.values(), key=lambda model: (model.id.lower(), model.id))


def _model_of(slug: str, metadata: object, operations: frozenset[str]) -> Model:
    facts = metadata if isinstance(metadata, dict) else {}
    model_id, created, owner = facts.get("model"), facts.get("created"), facts.get("owned_by")
    return Model(
        model_id if isinstance(model_id, str) and slug_of(model_id) == slug else slug,
        slug,
        created if type(created) is int and 0 <= created < _END_OF_TIME else 0,
        owner if isinstance(owner, str) else "capdag",
        operations,
    )


def find_model(capabilities: Iterable[Capability], model_id: str, operation: str | None = None) -> Model:
    """Return the model that `model_id` means; case, and characters that no slug has, do not count.

    Raises ApiError 404, which lists what is on offer, if nobody has it or it has not the operation.
    """
    slug, models = slug_of(model_id), list_models(capabilities)
    for model in models:
        if model.slug == slug and (operation is None or operation in model.operations):
            return model
        if model.slug == slug:
            offered = ", ".join(sorted(model.operations))
            raise ApiError(404, "model_not_found", f"{model.id} offers {offered}, not {operation}", param="model")
    listed = ", ".join(model.id for model in models[:_LISTED]) + (", …" if len(models) > _LISTED else "")
    remedy = f"the models are {listed}" if models else "no host offers a model at the moment"
    raise ApiError(404, "model_not_found", f"no host serves the model {model_id[:200]!r}: {remedy}", param="model")


def check_abilities(capabilities: Iterable[Capability], cap: str, model: Model, asked: Mapping[str, str]) -> None:
    """Raise ApiError 400 unless somebody serves `cap`, which asks for abilities of `model`.

    `asked` has the abilities, each with the field of the request that asks for it.
    """
    wanted = CapUrn.parse(cap)
    claimed: set[str] = set()
    for capability in capabilities:
        if capability.urn.is_dispatchable(wanted):
            return
        tags = capability.urn.tags
        if tags.get("model") == model.slug and tags.keys() & wanted.tags.keys() & _OPERATIONS:
            claimed |= tags.keys()
    # Where each is claimed, but by different caps, none of them does.
    missing = [ability for ability in asked if ability not in claimed] or list(asked)
    fields = sorted({asked[ability] for ability in missing})
    raise ApiError(
        400,
        "unsupported_ability",
        f"{model.id} does not claim {' and '.join(missing)}, which the request asks for by {' and '.join(fields)}: "
        "leave that out, or use a model that does",
        param=fields[0],
    )
