"""Random URNs, and a slow direct reading of the rules to hold the quick one against."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from capdag.urn import CapUrn, Effect, MediaUrn, UrnError

UNSET = None
STATES = frozenset({UNSET, "v", "w", "some other value"})
"""What a key may be in: unset, or one of three values, of which no pattern names the last."""

STORED = st.sampled_from(["?", "?=v", "?=w", "*", "!=v", "!=w", "v", "w", "!"])
TAGS = st.dictionaries(st.sampled_from("abc"), STORED, max_size=3)
MEDIA = st.builds(MediaUrn, TAGS)


def _cap(in_media: MediaUrn, out_media: MediaUrn, effect: Effect, tags: Mapping[str, str]) -> CapUrn | None:
    try:
        return CapUrn(in_media, out_media, effect=effect, tags=tags)
    except UrnError:
        return None


# Mostly declared and mostly one tag, so that a random pair has a fair chance to match.
EFFECTS = st.sampled_from([Effect.DECLARED] * 4 + list(Effect))
SMALL = st.dictionaries(st.sampled_from("ab"), STORED, max_size=1)
SMALL_MEDIA = st.one_of(st.just(MediaUrn({})), st.builds(MediaUrn, SMALL))
CAPS = st.builds(_cap, SMALL_MEDIA, SMALL_MEDIA, EFFECTS, SMALL).filter(bool)

# Several tags an axis: mostly exact and open ones in media, where a whole set has to fit.
MANY = st.dictionaries(
    st.sampled_from("abcd"), st.sampled_from(["v", "v", "w", "*", "?", "!", "?=w", "!=w"]), max_size=4
)
WIDE_MEDIA = st.builds(MediaUrn, MANY)
WIDE_CAPS = st.builds(_cap, WIDE_MEDIA, SMALL_MEDIA, EFFECTS, SMALL).filter(bool)


def states(stored: str) -> frozenset[str | None]:
    """Return the states that a stored tag stands for."""
    if stored == "?":
        return STATES
    if stored == "!":
        return frozenset({UNSET})
    if stored == "*":
        return STATES - {UNSET}
    if stored.startswith("?="):
        return STATES - {stored[2:]}
    if stored.startswith("!="):
        return STATES - {UNSET, stored[2:]}
    return frozenset({stored})


def fits(instance: Mapping[str, str], pattern: Mapping[str, str], missing: str = "?") -> bool:
    keys = instance.keys() | pattern.keys()
    return all(states(instance.get(key, missing)) <= states(pattern.get(key, "?")) for key in keys)


def meets(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    return all(states(a.get(key, "?")) & states(b.get(key, "?")) for key in a.keys() | b.keys())


def may_serve(candidate: CapUrn, request: CapUrn) -> bool:
    """Read the dispatch rule axis by axis (protocol-spec/urn.md)."""
    asks_input = set(request.in_media.tags.values()) - {"?"}
    takes = not asks_input or fits(request.in_media.tags, candidate.in_media.tags)
    gives = fits(candidate.out_media.tags, request.out_media.tags)
    effect = request.effect == Effect.OPEN or request.effect == candidate.effect
    return takes and gives and effect and fits(candidate.tags, request.tags, missing="!")


def ranked(candidates: Mapping[int, CapUrn], request: CapUrn, hint: CapUrn | None) -> list[int]:
    """Return the numbers of the candidates that may serve, best first; numbers grow in the order registered."""

    def place(number: int) -> tuple[bool, bool, int, int]:
        cap = candidates[number]
        distance = cap.specificity() - request.specificity()
        hinted = hint is not None and (cap.in_media, cap.out_media, cap.tags) == (
            hint.in_media,
            hint.out_media,
            hint.tags,
        )
        # Among the hinted, the earliest wins.
        return (not hinted, distance < 0, abs(distance), number)

    return sorted((number for number, cap in candidates.items() if may_serve(cap, request)), key=place)
