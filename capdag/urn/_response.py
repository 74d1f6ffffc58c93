"""Which media an answer has, by the effect of the cap that gave it."""

from __future__ import annotations

from capdag.urn._cap import CapUrn, Effect
from capdag.urn._error import UrnError
from capdag.urn._tagged import MediaUrn


def response_media(cap: CapUrn, received: MediaUrn | None = None) -> MediaUrn:
    """Return the media of the answer to an input of media `received`, by default the declared input.

    Raises `UrnError`: `input_not_satisfied` when the cap does not take `received`, `effect_open` when the effect is
    not known, `void_not_atomic` when a patch would leave tags beside `void`.
    """
    given = cap.in_media if received is None else received
    if not given.satisfies(cap.in_media):
        raise UrnError("input_not_satisfied", str(given), None, f"the cap takes {cap.in_media}")
    if cap.effect is Effect.OPEN:
        raise UrnError("effect_open", str(cap), None, "the answer's media is known only for a given effect")
    if cap.effect is Effect.NONE:
        return given
    if cap.effect is Effect.PATCH:
        return _patched(given, cap)
    return cap.out_media


def admits_response(cap: CapUrn, received: MediaUrn, emitted: MediaUrn) -> bool:
    """Tell whether an answer of media `emitted` is what the cap promises. Raises as `response_media` does."""
    promised = response_media(cap, received)
    if cap.effect is Effect.DECLARED:
        return emitted.satisfies(promised)
    return emitted.is_equivalent(promised)


def _patched(given: MediaUrn, cap: CapUrn) -> MediaUrn:
    """Apply to `given` what changes from the cap's in to its out; keys that are equal in both are left alone."""
    before, after = cap.in_media.tags, cap.out_media.tags
    tags = {key: stored for key, stored in given.tags.items() if before.get(key) == after.get(key)}
    tags.update((key, stored) for key, stored in after.items() if before.get(key) != stored)
    return MediaUrn(tags)
