"""What the services share about gRPC: channels, servers, health, reflection, errors, stopping.

Each name is imported on first use: the SDK opens channels, and need not have what servers need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.rpc.channels import open_channel as open_channel
    from quire.rpc.channels import open_sync_channel as open_sync_channel
    from quire.rpc.error_interceptor import ErrorInterceptor as ErrorInterceptor
    from quire.rpc.health import answers as answers
    from quire.rpc.health import until_serving as until_serving
    from quire.rpc.options import CHANNEL_OPTIONS as CHANNEL_OPTIONS
    from quire.rpc.options import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
    from quire.rpc.options import server_options as server_options
    from quire.rpc.server import Server as Server
    from quire.rpc.start import CONFIG_ERROR_STATUS as CONFIG_ERROR_STATUS
    from quire.rpc.start import announce as announce
    from quire.rpc.start import exit_status as exit_status
    from quire.rpc.start import fail as fail
    from quire.rpc.start import report as report
    from quire.rpc.start import stop_signal as stop_signal
    from quire.rpc.start import until_stopped as until_stopped
    from quire.security.roles import Role as Role
    from quire.security.tls import TlsFiles as TlsFiles
    from quire.security.tls import open_tls as open_tls

_NAMES = {
    "quire.rpc.channels": ("open_channel", "open_sync_channel"),
    "quire.rpc.error_interceptor": ("ErrorInterceptor",),
    "quire.rpc.health": ("answers", "until_serving"),
    "quire.rpc.options": ("CHANNEL_OPTIONS", "MAX_MESSAGE_BYTES", "server_options"),
    "quire.rpc.server": ("Server",),
    "quire.rpc.start": (
        *("CONFIG_ERROR_STATUS", "announce", "exit_status", "fail", "report"),
        *("stop_signal", "until_stopped"),
    ),
    "quire.security.roles": ("Role",),
    "quire.security.tls": ("TlsFiles", "open_tls"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name from the module that has it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'quire.rpc' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
