"""Arguments of gRPC channels and servers: what bounds messages, notices dead peers, reconnects.

`ping_timeout_ms` is the one that notices a peer that has stopped answering; in current grpc
`keepalive_timeout_ms` alone has no effect.
"""

MAX_MESSAGE_BYTES = 64 * 2**20

KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *KEEPALIVE,
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also bounds one attempt to connect, in which there may be a TLS handshake of a busy machine.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Short: streams stand still until a router has found its scheduler again.
    ("grpc.max_reconnect_backoff_ms", 100),
    # Containers come back with other addresses; the default is 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Else channels share connections: a new one to a worker that has just come back would be given
    # of the failures of an older one, for as long as that waits to try again.
    ("grpc.use_local_subchannel_pool", 1),
)
# In the clear: not by way of a proxy that the environment names, which would read it all.
CLEAR_CHANNEL_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.enable_http_proxy", 0))

# Calls that have come and no handler has yet; above it grpc ends some as CANCELLED, by chance. Its
# own bound of 1,000 is below what a router queues, and it is a router that says RESOURCE_EXHAUSTED.
MAX_PENDING_CALLS = 16_384


def server_options(max_receive_bytes: int = MAX_MESSAGE_BYTES) -> tuple[tuple[str, int], ...]:
    """Return the options of a server that reads messages of at most `max_receive_bytes`."""
    return (
        *KEEPALIVE,
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
    )
