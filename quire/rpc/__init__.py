"""What the services share about gRPC: channels, servers, health, reflection, errors, stopping."""

from quire.rpc.call_errors import ErrorInterceptor
from quire.rpc.channels import open_channel, open_sync_channel
from quire.rpc.health import answers, until_serving
from quire.rpc.options import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, server_options
from quire.rpc.server import Server
from quire.rpc.start import (
    CONFIG_ERROR_STATUS,
    announce,
    exit_status,
    fail,
    report,
    stop_signal,
    until_stopped,
)
from quire.security.roles import Role
from quire.security.tls import TlsFiles, open_tls

__all__ = [
    "CHANNEL_OPTIONS",
    "CONFIG_ERROR_STATUS",
    "MAX_MESSAGE_BYTES",
    "ErrorInterceptor",
    "Role",
    "Server",
    "TlsFiles",
    "announce",
    "answers",
    "exit_status",
    "fail",
    "open_channel",
    "open_sync_channel",
    "open_tls",
    "report",
    "server_options",
    "stop_signal",
    "until_serving",
    "until_stopped",
]
