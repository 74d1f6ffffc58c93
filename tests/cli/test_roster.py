"""Which cartridges a host gets: discovered, from the file, from the command line."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from capdag.cli._roster import read_roster
from capdag.config import CartridgeConfig, Config, ModelConfig, ModelsConfig
from capdag.errors import ConfigError

FAKE = """
from pathlib import Path
from capdag.cartridge.spec import Record, Spec

def records(models: Path, settings_of):
    caps = [{"urn": f"cap:chat;model={name}", "metadata": {"model": name}} for name in ("One", "Two")]
    models_of = [(cap["metadata"]["model"], cap) for cap in caps]
    own = {"dir": str(models), "slots": 1}
    return [Record(f"fake/{name.lower()}", [cap], {**own, **settings_of(name)}) for name, cap in models_of]

SPEC = Spec("fake", ("run-fake", "now"), REQUIRES, records)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that takes installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_cartridge", raising=False)
    return tmp_path


def _install(folder: Path, source: str, requires: tuple[str, ...] = (), dependencies: str = "") -> None:
    """Install a cartridge package as pip would."""
    (folder / "fake_cartridge.py").write_text(source.replace("REQUIRES", repr(requires)))
    info = folder / "fake_cartridge-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fake-cartridge\nVersion: 1.0\n{dependencies}")
    (info / "entry_points.txt").write_text("[capdag.cartridges]\nfake = fake_cartridge:SPEC\n")


def test_an_installed_cartridge_is_found_with_its_records(install: Path) -> None:
    _install(install, FAKE)
    roster = read_roster(Config(), Path("weights"))
    (one, two) = [record for record in roster.records if record.id.startswith("fake/")]
    assert (one.id, two.id) == ("fake/one", "fake/two")
    assert tuple(one.command) == ("run-fake", "now")
    assert one.caps[0]["urn"] == "cap:chat;model=One"
    assert one.settings == {"dir": "weights", "slots": 1}


def test_how_long_a_cartridge_lives_is_said_for_each(install: Path) -> None:
    _install(install, FAKE)
    models = ModelsConfig(keep_alive=60.0, overrides={"Two": ModelConfig(keep_alive="always", warm=True)})
    mine = CartridgeConfig(name="mine", command=["x"], keep_alive=5.0, warm=True, pools={"all": 2})
    plain = CartridgeConfig(name="plain", command=["x"])
    roster = read_roster(Config(models=models, cartridge=[mine, plain]), Path("weights"))
    found = {record.id: (record.keep_alive, record.warm, record.pools) for record in roster.records}
    assert found["fake/one"] == (60.0, False, {})
    assert found["fake/two"] == (math.inf, True, {})
    assert found["mine"] == (5.0, True, {"all": 2})
    assert found["plain"] == (None, False, {})
    assert {"keep_alive", "warm"}.isdisjoint(roster.records[0].settings)


def test_settings_of_models_reach_their_records(install: Path) -> None:
    _install(install, FAKE)
    models = ModelsConfig(slots=4, threads=2, overrides={"Two": ModelConfig(context=8192, slots=1)})
    roster = read_roster(Config(models=models), Path("weights"))
    settings = {record.id: record.settings for record in roster.records}
    assert settings["fake/one"] == {"dir": "weights", "slots": 4, "threads": 2}
    assert settings["fake/two"] == {"dir": "weights", "slots": 1, "threads": 2, "context": 8192}
    assert "slots" not in settings["echo"]


def test_settings_for_no_model_are_told(install: Path) -> None:
    _install(install, FAKE)
    models = ModelsConfig(overrides={"Tow": ModelConfig(slots=1)})
    (notice,) = read_roster(Config(models=models), Path("weights")).notices
    assert notice == "models.overrides.\"Tow\" is for no model that is served; did you mean 'Two'?"


@pytest.mark.parametrize(
    ("dependencies", "command"),
    [
        ('Requires-Dist: no-such-engine==1; extra == "fast"\n', "pip install 'fake-cartridge[fast]'"),
        ("", "pip install no_such_engine"),
    ],
)
def test_a_missing_engine_is_told_with_the_command_that_brings_it(
    install: Path, dependencies: str, command: str
) -> None:
    _install(install, FAKE, ("no_such_engine",), dependencies)
    roster = read_roster(Config(), Path("weights"))
    assert roster.notices == [f"cartridge fake is not served: install it with {command}"]
    assert [record.id for record in roster.records if record.id.startswith("fake")] == []


def test_a_missing_library_is_told_with_what_brings_it(install: Path) -> None:
    _install(
        install, FAKE.replace("records)", "records, (('libc.so.6', ''), ('libnone.so.9', 'sudo apt install none')))")
    )
    roster = read_roster(Config(), Path("weights"))
    assert roster.notices == ["cartridge fake is not served: libnone.so.9 is missing: sudo apt install none"]


def test_a_package_that_cannot_be_loaded_is_told_and_hinders_nobody(install: Path) -> None:
    _install(install, "import no_such_module")
    roster = read_roster(Config(), Path("weights"))
    (notice,) = roster.notices
    assert notice.startswith("cartridge fake is not served: fake_cartridge:SPEC cannot be loaded (No module named")
    assert "echo" in [record.id for record in roster.records]


def test_a_table_becomes_a_record_and_replaces_an_installed_cartridge_of_its_name() -> None:
    table = CartridgeConfig(name="echo", command=["mine"], caps=["cap:echo"], env={"A": "1"}, settings={"depth": 2})
    roster = read_roster(Config(cartridge=[table]), Path("weights"))
    (echo,) = [record for record in roster.records if record.id == "echo"]
    assert (echo.command, echo.env, echo.settings) == (["mine"], {"A": "1"}, {"depth": 2})
    assert [cap["urn"] for cap in echo.caps] == ["cap:echo"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("nosuchcmd --x", "nosuchcmd"),
        ("sleep 1000", "sleep"),
        ("sh -c 'exec a | b > c'", "sh"),
        ("/usr/bin/python3.11 -u -m my.module --port 5", "my.module"),
        ("python3 -m capdag.cartridge my.module", "my.module"),
        ("python3 -W -c 'print(1)'", "python3"),
        ("python3", "python3"),
        ("node upper.mjs --fast 3", "upper"),
        ("deno run --allow-all upper.ts", "upper"),
        ("java -jar lib/engine.jar 8", "engine"),
        ("./cartridge.py --depth 3", "cartridge"),
        ("python3 7.py", "cartridge"),
    ],
)
def test_a_command_is_named_by_what_runs(command: str, name: str) -> None:
    (record,) = read_roster(Config(), Path("weights"), [command]).records[-1:]
    assert record.id == name


@pytest.mark.parametrize(
    "command",
    ["capdag trace record run.trace -- python3 mine.py", "python3 -m capdag.trace --file run.trace -- python3 mine.py"],
)
def test_what_a_recorder_stands_in_front_of_gives_the_name(command: str) -> None:
    (record,) = read_roster(Config(), Path(), [command]).records[-1:]
    assert record.id == "mine"


def test_commands_of_one_name_are_numbered() -> None:
    commands = ["python3 'my cartridges/up per.py'", "node up-per", "./up-per", "/"]
    table = CartridgeConfig(name="up-per", command=["x"])
    roster = read_roster(Config(cartridge=[table]), Path("weights"), commands)
    named = {record.id: list(record.command) for record in roster.records if "echo" not in record.id}
    assert named == {
        "up-per": ["x"],
        "up-per-2": ["python3", "my cartridges/up per.py"],
        "up-per-3": ["node", "up-per"],
        "up-per-4": ["./up-per"],
        "cartridge": ["/"],
    }


@pytest.mark.parametrize(("command", "message"), [("'", "cannot be split as a shell does"), (" ", "is empty")])
def test_a_command_that_is_none_is_refused(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_roster(Config(), Path("weights"), [command])
