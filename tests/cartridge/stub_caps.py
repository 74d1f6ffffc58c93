"""Cap and media URNs of the stub cartridge, without its side effects."""

from __future__ import annotations

TEXT = "media:text;enc=utf-8"
TEXT_CANONICAL = "media:enc=utf-8;text"
ITEMS = "media:item;list"


def _cap(name: str, in_media: str = "media:octets", out_media: str = TEXT) -> str:
    return f'cap:{name};in="{in_media}";out="{out_media}"'


HOLD = _cap("hold")
HOLD_CANONICAL = 'cap:hold;in=media:octets;out="media:enc=utf-8;text"'
HOLD_TOO = _cap("hold-too")
STUBBORN = _cap("stubborn")
READ = _cap("read")
LAZY = _cap("lazy")
FLOOD = _cap("flood", out_media=ITEMS)
CALLBACK = _cap("callback")
LATE = _cap("late")
BOOM = _cap("boom")
QUIT = _cap("quit")
ERROR = _cap("error")
UNSPEAKABLE = _cap("unspeakable")
VALUES = _cap("values")
TRICKLE = _cap("trickle")
WAIT = _cap("wait", "media:void", "media:void")
VOID = _cap("void", "media:void", "media:void")
PRINT = _cap("print", "media:void", "media:void")
REPORT = _cap("report", "media:void", TEXT)
COLLECT = _cap("collect", ITEMS, ITEMS)
WRONG_KIND = _cap("wrong-kind", "media:void", ITEMS)
TWO = _cap("two", TEXT, TEXT)
NOTES = "media:notes;enc=utf-8"
NOTES_CANONICAL = "media:enc=utf-8;notes"
EXTRA = "media:extra;enc=utf-8"
OPTION = "media:option;enc=utf-8"
ECHO = _cap("echo", out_media="media:octets")
THREAD = _cap("thread", out_media="media:octets")
ASK = _cap("ask", TEXT, "media:octets")
ASK_PLAIN = _cap("ask-plain", TEXT, "media:octets")
LEAVE = _cap("leave", TEXT, "media:octets")
LEAVE_PLAIN = _cap("leave-plain", TEXT, "media:octets")
FAN = _cap("fan", TEXT, "media:octets")
NAMED = _cap("named", TEXT, "media:octets")
WRONG_THREAD = _cap("wrong-thread", "media:void", TEXT)
KEEP = _cap("keep", "media:void", "media:void")
KEEP_PLAIN = _cap("keep-plain", "media:void", "media:void")
LEFT_BEHIND = _cap("left-behind", TEXT, "media:void")
WATCH = _cap("watch", ITEMS, ITEMS)
WATCH_PLAIN = _cap("watch-plain", ITEMS, ITEMS)
WHOLE = _cap("whole", ITEMS, TEXT)
POLICY = _cap("policy", out_media=TEXT)
BREAK = _cap("break", TEXT, "media:octets")
BREAK_PLAIN = _cap("break-plain", TEXT, "media:octets")
LIST = _cap("list", TEXT, TEXT)
TYPED = _cap("typed", ITEMS, TEXT)
BACKGROUND = _cap("background", "media:void", "media:void")
