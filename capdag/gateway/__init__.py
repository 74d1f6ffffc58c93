"""HTTP: OpenAI requests become calls of capabilities, and their answers OpenAI responses. Knows the client only."""

from __future__ import annotations

from .app import Admin, Gateway, create_app
from .listener import Bind, BindError, PortInUseError, TcpBind, UnixBind
from .readiness import Readiness
from .server import serve_http
from .settings import GatewaySettings

__all__ = [
    "Admin",
    "Bind",
    "BindError",
    "Gateway",
    "GatewaySettings",
    "PortInUseError",
    "Readiness",
    "TcpBind",
    "UnixBind",
    "create_app",
    "serve_http",
]
