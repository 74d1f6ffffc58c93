"""The configuration file: defaults, and errors that say which key, which value and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from capdag.config import CartridgeConfig, Config, HostLinks, ModelConfig, given, parse_config, read_config
from capdag.errors import ConfigError

WHOLE = """
[gateway]
host = "::1"
port = 0
write_deadline = 5

[host]
policy = "offline"
heartbeat_interval = 0.5
table_limit = 100

[switch]
max_queued = 5

[models]
dir = "weights"
slots = 4

[models.overrides."Org/Model.Q4"]
context = 8192

[[cartridge]]
name = "upper"
command = ["python3", "upper.py"]
caps = ['cap:in="media:enc=utf-8";upper;out="media:enc=utf-8"']
env = { LANG = "C" }
settings = { depth = { level = 2 } }
"""


def test_paths_of_a_file_start_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "capdag.toml"
    file.write_text(
        '[gateway.links]\nhosts = ["unix:a.sock, unix:/b.sock", "tls:c:1"]\ntls_ca = "ca.pem"\n'
        '[host.links]\ntoken_file = "/etc/token"\n[models]\ndir = "weights"\n[trace]\ndir = "~/traces"'
    )
    config = read_config(file)
    assert config.gateway.links.hosts == (f"unix:{tmp_path}/a.sock,unix:/b.sock", "tls:c:1")
    assert config.gateway.links.tls_ca == f"{tmp_path}/ca.pem"
    assert config.host.links.token_file == "/etc/token"
    assert (config.models.dir, config.trace.dir) == (f"{tmp_path}/weights", "~/traces")


def test_no_file_is_needed() -> None:
    config = Config()
    assert (config.gateway.host, config.gateway.port, config.cartridge) == ("127.0.0.1", 8080, [])
    assert parse_config("") == config


def test_every_table_is_read() -> None:
    config = parse_config(WHOLE)
    assert (config.gateway.host, config.gateway.port) == ("::1", 0)
    host = {"policy": "offline", "heartbeat_interval": 0.5, "table_limit": 100, "links": HostLinks()}
    assert given(config.host) == host
    assert given(config.switch) == {"max_queued": 5}
    assert (config.models.dir, config.models.slots) == ("weights", 4)
    assert config.models.overrides == {"Org/Model.Q4": ModelConfig(context=8192)}
    assert config.cartridge == [
        CartridgeConfig(
            name="upper",
            command=["python3", "upper.py"],
            caps=['cap:in="media:enc=utf-8";upper;out="media:enc=utf-8"'],
            env={"LANG": "C"},
            settings={"depth": {"level": 2}},
        )
    ]


_MINE = '[[cartridge]]\nname = "mine"\ncommand = ["x"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gatway]", "gatway: unknown key; did you mean gateway?"),
        ("zebra = 1", "zebra: unknown key; known here: gateway, host, switch, models, trace, cartridge"),
        ("[gateway]\nprot = 1", "gateway.prot: unknown key; did you mean port?"),
        ('[gateway]\nport = "x"', 'gateway.port = "x": expected a whole number, got text'),
        ("[gateway]\nport = 99999", "gateway.port = 99999: expected a whole number <= 65535"),
        ("[gateway]\nport = true", "gateway.port = true: expected a whole number, got true or false"),
        ("[host]\nheartbeat_interval = 0", "host.heartbeat_interval = 0: expected a number > 0.0"),
        (_MINE + 'keep_alive = "ever"', 'cartridge[0].keep_alive = "ever": expected "always" or a number'),
        (_MINE + "keep_alive = 0", "cartridge[0].keep_alive = 0: expected a number > 0"),
        (_MINE + "pools = { all = -1 }", "cartridge[0].pools.all = -1: expected a whole number >= 0"),
        (_MINE + "warm = 1", "cartridge[0].warm = 1: expected true or false"),
        ('[host]\npolicy = "none"', 'host.policy = "none": expected "offline" or "no_telemetry" or "full"'),
        ('[gateway]\nallowed_hosts = "a"', 'gateway.allowed_hosts = "a": expected a list, got text'),
        ("gateway = 3", "gateway = 3: expected a table"),
        ("cartridge = 3", "cartridge = 3: expected a list, got a whole number"),
        ('[cartridge]\nname = "a"', "cartridge: expected a list; for a list of tables write [[cartridge]]"),
        ("cartridge = [3]", "cartridge[0] = 3: expected a table"),
        ('[models.overrides."a b"]\nslot = 3', 'models.overrides."a b".slot: unknown key; did you mean slots?'),
        ('[[cartridge]]\nname = "a"', "cartridge[0].command: missing; every [[cartridge]] needs it"),
        (
            '[[cartridge]]\nname = "a"\ncommand = []',
            "cartridge[0].command = []: expected the program and its arguments",
        ),
        ('[[cartridge]]\nname = "a"\ncommand = "x"', 'cartridge[0].command = "x": expected a list, got text'),
        (
            '[[cartridge]]\nname = "a"\ncommand = ["x", 3]',
            "cartridge[0].command[1] = 3: expected text, got a whole number",
        ),
        (
            '[[cartridge]]\nname = "a b"\ncommand = ["x"]',
            "cartridge[0].name = \"a b\": expected letters, digits, '.', '_' and '-'",
        ),
        (
            '[[cartridge]]\nname = "a"\ncommand = ["x"]\n[[cartridge]]\nname = "a"\ncommand = ["x"]',
            'cartridge[1].name = "a": cartridge[0] has this name; give another',
        ),
        ('[[cartridge]]\nname = "a"\ncommand = ["x"]\nsettings = { day = 2026-01-01 }', "settings travel as JSON"),
        ('[[cartridge]]\nname = "a"\ncommand = ["x"]\ncaps = ["upper"]', 'cartridge[0].caps[0] = "upper": '),
        ("x =", "not TOML: "),
    ],
)
def test_a_mistake_names_the_key_the_value_and_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert message in str(caught.value)


def test_all_mistakes_are_told_at_once_each_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "capdag.toml"
    file.write_text('[gateway]\nport = "x"\n[host]\nheartbeat = 1\n')
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{file}: ") for line in lines)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file or directory; give another"):
        read_config(tmp_path / "none.toml")
    file = tmp_path / "latin.toml"
    file.write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match=r"latin\.toml is not UTF-8 \(byte 5\)"):
        read_config(file)
