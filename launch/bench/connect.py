"""The client that `quire bench serve` is asked for."""

import ssl
from typing import Any

from launch.bench.clients.base import BenchClient
from launch.bench.clients.grpc import QuireClient
from launch.bench.clients.http import HttpClient
from launch.bench.clients.openai import APIS, OpenAiClient
from launch.bench.serve_options import BackendName, ServeOptions
from quire.contract.addresses import join_address
from quire.contract.errors import ConfigError
from quire.rpc import Role, TlsFiles
from quire.security.tls import CERTIFICATE, KEY, ROOTS

HTTP_PORT, GRPC_PORT = 8000, 50051


def server_of(options: ServeOptions) -> str:
    """Return where the server is: a URL, or of Quire's API HOST:PORT."""
    if options.backend == BackendName.QUIRE:
        port = GRPC_PORT if options.port is None else options.port
        return options.base_url or join_address(options.host, port)
    scheme = "http" if options.tls_dir is None else "https"
    port = HTTP_PORT if options.port is None else options.port
    return options.base_url or f"{scheme}://{join_address(options.host, port)}"


def takes_token_ids(options: ServeOptions) -> bool:
    """Return whether prompts are sent as token ids."""
    if options.prompts_as_text:
        return False
    return options.backend == BackendName.QUIRE or APIS[options.backend].takes_token_ids


def open_client(options: ServeOptions, api_key: str | None) -> BenchClient:
    """Return a client of the server, in the running event loop.

    Args:
        options: which.
        api_key: to call with; None for none, and for Quire's API that of the environment.

    Raises:
        ConfigError: the certificates cannot be used, or options do not go with the backend.
    """
    fields: dict[str, Any] = {**options.sampling}
    if options.ignores_eos:
        fields["ignore_eos"] = True
    if options.backend == BackendName.QUIRE:
        if options.header or options.endpoint:
            raise ConfigError("header, endpoint: must not be given with backend quire")
        fields |= options.more_fields
        return QuireClient(
            server_of(options),
            fields={name: each for name, each in fields.items() if each is not None},
            tls_dir=options.tls_dir,
            api_key=api_key,
            insecure=options.insecure,
        )
    bearer = {"authorization": f"Bearer {api_key}"} if api_key else {}
    http = HttpClient(
        server_of(options),
        {**bearer, **options.headers},
        _tls(options),
        Role.ROUTER if options.tls_dir is not None else None,
    )
    api = APIS[options.backend]()
    return OpenAiClient(http, api, options.endpoint, fields, options.more_fields)


def _tls(options: ServeOptions) -> ssl.SSLContext | bool:
    """Return what aiohttp checks a certificate by."""
    if options.insecure or options.tls_dir is None:
        return not options.insecure
    directory = TlsFiles(options.tls_dir, Role.CLIENT).directory
    context = ssl.create_default_context(cafile=directory / ROOTS)
    if (directory / CERTIFICATE).exists():
        context.load_cert_chain(directory / CERTIFICATE, directory / KEY)
    return context
