"""The six forms of a tag and the two relations between them.

A tag's *stored* text carries its form: `?` open, `?=v` absent or not v, `*` present, `!=v` present but not v, `v`
exact, `!` absent. No exact value looks like another form: the reader turns such texts into that form, quoted or not.
Each form stands for a set of states of its key, {unset} and {set to w} for every w. One tag *fits* another when its
set lies within the other's; two tags *meet* when their sets overlap.
"""

from __future__ import annotations

from collections.abc import Mapping

OPEN, ABSENT_OR_NOT, PRESENT, PRESENT_NOT, EXACT, ABSENT = range(6)
"""The forms. Each number is also the form's score in specificity."""

MISSING_OPEN = "?"
"""A key that is not there, read openly: nothing is known of it."""
MISSING_CLOSED = "!"
"""A key that is not there, when the thing is completely described: it is unset."""

SIGILS = {"?": OPEN, "*": PRESENT, "!": ABSENT}
"""The stored texts that are a form by themselves."""
QUALIFIED = {"?=": ABSENT_OR_NOT, "!=": PRESENT_NOT}
"""The two marks that a stored text can start with, before its operand."""
_MARKS = {EXACT: "", **{form: mark for mark, form in QUALIFIED.items()}}

FITS = (
    # pattern: ?x   x?=p x    x!=p x=p  !x      Y yes, - no, = operands equal, # operands differ
    "Y-----",  # ?x
    "Y=----",  # x?=v
    "Y-Y---",  # x
    "Y=Y=--",  # x!=v
    "Y#Y#=-",  # x=v
    "YY---Y",  # !x
)
"""Which form, down, fits which, across."""
_MEETS = (
    "YYYYYY",
    "YYYY#Y",
    "YYYYY-",
    "YYYY#-",
    "Y#Y#=-",
    "YY---Y",
)


def form_of(stored: str) -> int:
    """Return the form of a stored text, which is its score too."""
    sigil = SIGILS.get(stored)
    return QUALIFIED.get(stored[:2], EXACT) if sigil is None else sigil


def operand_of(stored: str, form: int) -> str:
    """Return the value that a stored text of `form` names; of a form that names none it is without meaning."""
    return stored if form == EXACT else stored[2:]


def spelled(form: int, operand: str) -> str:
    """Return the stored text of one of the forms that name a value."""
    return _MARKS[form] + operand


def _holds(table: tuple[str, ...], a: str, b: str) -> bool:
    form_a, form_b = form_of(a), form_of(b)
    rule = table[form_a][form_b]
    if rule in "Y-":
        return rule == "Y"
    return (operand_of(a, form_a) == operand_of(b, form_b)) == (rule == "=")


def tag_fits(stored: str, wanted: str) -> bool:
    """Tell whether one stored tag fits another."""
    return _holds(FITS, stored, wanted)


def all_fit(instance: Mapping[str, str], pattern: Mapping[str, str], missing: str) -> bool:
    """Tell whether every tag of `instance` fits `pattern`; `missing` says how a key the instance lacks is read.

    Keys the pattern lacks accept everything, so only the pattern's are visited.
    """
    for key, wanted in pattern.items():
        # The two comparisons settle most tags without a call.
        stored = instance.get(key, missing)
        if stored != wanted and wanted != "?" and not _holds(FITS, stored, wanted):
            return False
    return True


def all_meet(a: Mapping[str, str], b: Mapping[str, str], missing: str) -> bool:
    """Tell whether the tags of both overlap at every key of `b`; `missing` says how a key that `a` lacks is read."""
    return all(_holds(_MEETS, a.get(key, missing), stored) for key, stored in b.items())
