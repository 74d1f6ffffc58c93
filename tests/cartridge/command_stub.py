"""A cartridge whose caps show every way in which a command line gives an argument, and how calls end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from capdag.cartridge import Cartridge, CartridgeError, FeedItem, Request, RequestCancelledError, Selector

TEXT = "media:enc=utf-8"

cartridge = Cartridge("stub", version="1.2", description="Shows what command mode does.")

print("printed by an engine while it is imported")


def _source(
    *sources: dict[str, object], name: str, media: str, required: bool = True, **more: object
) -> dict[str, object]:
    return {"media_urn": media, "name": name, "required": required, "sources": list(sources), **more}


@cartridge.cap(
    'cap:in="media:enc=utf-8";join;out="media:enc=utf-8"',
    title="Join",
    aliases=["join", "glue"],
    args=[
        _source({"stdin": TEXT}, {"position": 0}, name="text", media=TEXT),
        _source({"position": 1}, name="second", media="media:enc=utf-8;second", required=False),
        _source({"cli_flag": "--by"}, name="separator", media="media:enc=utf-8;by", default_value="-"),
        _source({"cli_flag": "mark"}, name="mark", media="media:enc=utf-8;mark", required=False),
        _source({"stdin": "media:tail"}, name="tail", media="media:tail;x", required=False),
    ],
)
def join(request: Request) -> None:
    """Join what is given."""
    parts = [request.main_input(), request.input("media:enc=utf-8;second"), request.input("media:tail;x")]
    by = request.input("media:enc=utf-8;by").read()
    request.output.write(by.join(part.read() for part in parts if part.given))
    if request.input("media:enc=utf-8;mark").given:
        request.output.write(request.input("media:enc=utf-8;mark").read())


@cartridge.cap(
    "cap:in=media:number;out=media:sum;sum",
    title="Sum",
    aliases=["sum"],
    args=[_source({"stdin": "media:number"}, name="numbers", media="media:number", is_sequence=True)],
)
def add(request: Request) -> None:
    """Add numbers up."""
    request.output.write(sum(request.main_input()))


@cartridge.cap(
    "cap:in=media:void;out=media:word;words",
    title="Words",
    aliases=["words"],
    args=[
        _source({"position": 0}, name="words", media="media:word", is_sequence=True, arg_description="some words"),
        _source({"cli_flag": "--also"}, name="also", media="media:also", is_sequence=True, default_value=["too"]),
    ],
    outputs=[
        {"media_urn": "media:word", "name": "words", "output_description": "w", "is_sequence": True},
        {"media_urn": "media:count", "name": "count", "output_description": "c"},
    ],
)
def words(request: Request) -> None:
    """Give words back, and how many they are."""
    found = [*request.input("media:word"), *request.input("media:also")]
    for word in found:
        request.output.item(word)
    request.named_output("media:count").write(f"{len(found)}")


@cartridge.cap("cap:in=media:void;out=media:word;work", title="Work", aliases=["work"])
def work(request: Request) -> None:
    """Print, log and tell progress."""
    print("printed by a handler")
    request.log("warn", "careful", "input")
    request.progress(0.5, "half")
    request.output.write("done")


@cartridge.cap("cap:in=media:void;out=media:word;wait", title="Wait", aliases=["wait"])
def wait(request: Request) -> None:
    """Say a word, then wait to be cancelled."""
    with suppress(RequestCancelledError):
        request.output.write("word\n")
        request.output.flush()
    while not request.cancelled:
        time.sleep(0.01)
    sys.stderr.write("the handler was cancelled\n")


@cartridge.cap("cap:deaf;in=media:void;out=media:word", title="Deaf", aliases=["deaf"])
def deaf(request: Request) -> None:
    """Hear of no cancel."""
    with suppress(RequestCancelledError):
        request.output.write("word\n")
        request.output.flush()
    time.sleep(60)


@cartridge.feed("media:live;ticks")
def ticks(_selector: Selector) -> Iterator[FeedItem]:
    """Tick twice."""
    yield FeedItem(1)
    yield FeedItem(2)


@cartridge.cap('cap:in="media:live;ticks";out=media:sum;watch', title="Watch", aliases=["watch"])
def watch(request: Request) -> None:
    """Add up the ticks of a live feed."""
    request.output.write(sum(request.main_input()))


@cartridge.cap("cap:full;in=media:void;out=media:void", title="Full", aliases=["full", "one-of-two"])
def full(_request: Request) -> None:
    """Fail with everything that a failure can say."""
    detail = {"param": "n", "limit": 2, "retryable": True}
    raise CartridgeError("INVALID_REQUEST", "n is 3 and at most 2", "input", detail)


@cartridge.cap("cap:crash;in=media:void;out=media:void", title="Crash", aliases=["crash", "one-of-two"])
def crash(_request: Request) -> None:
    """Have a bug."""
    raise KeyError("lost")


@cartridge.cap("cap:in=media:void;leave;out=media:word", title="Leave", aliases=["leave"])
def leave(request: Request) -> None:
    """Leave processes behind: a child, one of its own, and one in a session of its own."""
    child = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    apart = subprocess.Popen(["sleep", "60"], start_new_session=True)
    assert child.stdout is not None
    request.output.write(f"{child.pid} {child.stdout.readline().strip()} {apart.pid}")


if __name__ == "__main__":
    cartridge.run()
