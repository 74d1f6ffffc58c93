"""The core's packages give their names when asked, and load little before."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("package", ["capdag.wire", "capdag.urn"])
def test_every_name_is_there_and_no_other(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {package} import nothing")


def test_a_cartridge_loads_what_routers_need_only_when_asked() -> None:
    code = "import capdag.cartridge, sys; print(*(name for name in sys.modules if name.startswith('capdag.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "capdag.wire.frame" in loaded
    for name in ("wire.requests", "wire.sequence", "wire.streams", "urn._table", "urn._explain"):
        assert f"capdag.{name}" not in loaded
