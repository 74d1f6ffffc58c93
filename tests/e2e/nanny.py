"""A chat cartridge that starts a process of its own, in a session of its own, and talks until nobody listens."""

from __future__ import annotations

import subprocess
import sys
import time

from capdag.cartridge import Cartridge, Request

CHAT = 'cap:chat;in="media:chat-request;enc=utf-8;fmt=json;record";model=nanny;out="media:chat-event;list;record"'
CHILD = "import time; time.sleep(600)"

cartridge = Cartridge("nanny", version="1.0.0", description="Has a child.")
output = {
    "media_urn": "media:chat-event;list;record",
    "name": "events",
    "output_description": "text",
    "is_sequence": True,
}


@cartridge.cap(CHAT, title="Chat", aliases=["nanny"], outputs=[output], metadata={"model": "nanny"})
def chat(request: Request) -> None:
    """Start a child and talk."""
    with subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True) as child:
        try:
            while True:
                request.check_cancelled()
                request.output.item({"text": "hush "})
                time.sleep(0.02)
        finally:
            child.kill()


if __name__ == "__main__":
    cartridge.run()
