"""A chat cartridge for runs over real networks: its model has the name that TICKER says, and ticks on until cancelled.

To any message but `for ever` it answers with that message.
"""

from __future__ import annotations

import itertools
import json
import os
import time

from capdag.cartridge import Cartridge, Request

NAME = os.environ.get("TICKER", "ticker")

CHAT = f'cap:chat;in="media:chat-request;enc=utf-8;fmt=json;record";model={NAME};out="media:chat-event;list;record"'
OUTPUTS = [
    {"media_urn": "media:chat-event;list;record", "name": "events", "output_description": "text", "is_sequence": True}
]

cartridge = Cartridge(NAME, version="0.1.0", description="Ticks")


@cartridge.cap(CHAT, title="Tick", aliases=["tick"], outputs=OUTPUTS, metadata={"model": NAME})
def tick(request: Request) -> None:
    """Answer with the last message, or with a dot every 20 ms."""
    text = json.loads(request.main_input().read())["messages"][-1]["content"]
    for letter in itertools.repeat(".") if text == "for ever" else text:
        request.check_cancelled()
        request.output.item({"text": letter})
        time.sleep(0.02)
    request.output.item({"finish": "stop"})
    request.output.item({"usage": {"prompt_tokens": 1, "completion_tokens": len(text)}})


if __name__ == "__main__":
    cartridge.run()
