"""The llama.cpp cartridge: `python -m capdag.cartridge cartridges.llama_cpp.main`, its model named in CAPDAG_CONFIG."""

from __future__ import annotations

from cartridges.llama_cpp.serving import add_model, new_cartridge
from cartridges.llama_cpp.settings import read_settings

if __name__ == "__main__":
    cartridge = new_cartridge()
    add_model(cartridge, read_settings(cartridge.settings))
    cartridge.run()
