"""The settings of links: from the file, and what the command line makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET

from capdag.cli._doors import Doors
from capdag.cli._links import read_addresses, read_credentials, read_times, settle_links
from capdag.config import GatewayLinks, HostLinks, parse_config
from capdag.errors import ConfigError
from capdag.transport.dialling import LinkTimes

FILE = """
[gateway.links]
hosts = ["tls:a.example:1", "tls:b.example:1"]
accept = ["wss://0.0.0.0:2/x"]
tls_ca = "ca.pem"
token_file = "token"
silence = 5
[host]
keep_warm = 60
[host.links]
listen = ["tcp:127.0.0.1:7070"]
handshake_timeout = 3
insecure = true
"""


def test_the_file_has_them_for_both_sides() -> None:
    config = parse_config(FILE)
    assert config.gateway.links.hosts == ("tls:a.example:1", "tls:b.example:1")
    assert config.host.links == HostLinks(listen=("tcp:127.0.0.1:7070",), handshake_timeout=3, insecure=True)
    assert config.host.keep_warm == 60
    assert read_times(config.gateway.links) == LinkTimes(silence=5)
    assert read_times(config.host.links) == LinkTimes(handshake=3)
    with pytest.raises(ConfigError, match=r"host.links.conect: unknown key; did you mean connect\?"):
        parse_config('[host.links]\nconect = ["unix:a"]')


def test_addresses_on_the_command_line_are_all_that_count() -> None:
    links = parse_config(FILE).gateway.links
    assert settle_links(links, {"hosts": (), "accept": (), "tls_ca": None}) == links
    settled = settle_links(links, {"hosts": ("tls:c.example:1",), "accept": (), "tls_ca": "other.pem"})
    assert (settled.hosts, settled.accept) == (("tls:c.example:1",), ())
    assert (settled.tls_ca, settled.token_file, settled.silence) == ("other.pem", "token", 5)


def test_files_of_the_configuration_that_those_addresses_cannot_use_are_left_out() -> None:
    links = parse_config(FILE).gateway.links
    settled = settle_links(links, {"hosts": ("unix:a,unix:b",), "accept": (), "tls_ca": None, "token_file": None})
    assert (settled.tls_ca, settled.token_file) == (UNSET, UNSET)
    addresses = read_addresses(settled.hosts)
    assert [str(address) for address in addresses] == ["unix:a", "unix:b"]
    assert read_credentials(settled, addresses).token is None


def test_credentials_that_no_address_can_use_are_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open-sesame-open-sesame")
    for links, message in [
        (GatewayLinks(hosts=("tcp:127.0.0.1:1",), tls_ca="ca.pem"), "no address begins with tls: or wss:"),
        (GatewayLinks(hosts=("unix:a",), token_file=str(tmp_path / "token")), "ask for no token"),
        (GatewayLinks(hosts=("unix:a", "unix:a")), "unix:a is given 2 times; give each address once"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Doors(links, links.accept, links.hosts)
