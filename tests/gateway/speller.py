"""A chat cartridge on the public SDK, for tests: it spells the last message, one letter an event.

The message `die` kills the process after three letters; `for ever` goes on until it is cancelled.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time

from capdag.cartridge import Cartridge, Request

CHAT = 'cap:chat;in="media:chat-request;enc=utf-8;fmt=json;record";model=speller;out="media:chat-event;list;record"'
OUTPUTS = [
    {"media_urn": "media:chat-event;list;record", "name": "events", "output_description": "text", "is_sequence": True}
]

cartridge = Cartridge("speller", version="0.1.0", description="Spells")


@cartridge.cap(CHAT, title="Spell", aliases=["spell"], outputs=OUTPUTS, metadata={"model": "Speller"})
def spell(request: Request) -> None:
    """Answer with the letters of the last message."""
    text = json.loads(request.main_input().read())["messages"][-1]["content"]
    letters = itertools.cycle("abc") if text == "for ever" else text
    for count, letter in enumerate(letters):
        if text == "die" and count == 2:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        request.check_cancelled()
        request.output.item({"text": letter})
        time.sleep(0.002)
    request.output.item({"finish": "stop"})
    request.output.item({"usage": {"prompt_tokens": 1, "completion_tokens": len(text)}})


if __name__ == "__main__":
    cartridge.run()
