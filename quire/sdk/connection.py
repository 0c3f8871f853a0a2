"""What both clients are made on: channels to routers, and the call of a stream."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from quire.contract.chat import ChatInput
from quire.contract.errors import ProtocolDiffersError, UnavailableError
from quire.contract.inputs import GenerateInput, ResumeInput
from quire.contract.sampling_params import SamplingParams
from quire.rpc import Role, TlsFiles
from quire.rpc.call_metadata import PROTOCOL_METADATA, call_metadata
from quire.sdk.calls import (
    ChatOptions,
    EmbedOptions,
    GenerateOptions,
    Messages,
    Prompt,
    chat_input,
    generate_input,
    message_of,
    open_tls,
    trace_metadata,
)
from quire.sdk.departures import Departures
from quire.sdk.resume import ResumableStream
from quire.sdk.silence import RouterWatches
from quire.sdk.targets import parse_targets
from quire.v1 import inference_pb2, inference_pb2_grpc
from quire.wire.chat import chat_input_to_proto
from quire.wire.inference import (
    generate_input_to_proto,
    resume_input_to_proto,
)

# Of a router, where there are others: during an upgrade they are of different releases.
PASSED_OVER = (UnavailableError, ProtocolDiffersError)
NO_OPTIONS = EmbedOptions()


class Connection:
    """What both clients are: a channel to each router, their stubs, and what each call carries."""

    _open: Callable[[str, TlsFiles | None, str | None], Any]
    _stub_of_each: Sequence[Any]

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        tls_dir: str | Path | None = None,
        server_name: str | None = None,
        api_key: str | None = None,
        insecure: bool = False,
        resume_timeout: float = 60.0,
    ) -> None:
        """Prepare a connection; it is made at the first call.

        Args:
            target: address of a router, "host:port", or several, also as one text with commas. A
                host name stands for all its addresses. Of several, a client begins with any.
            tls_dir: directory of `ca.crt`, `tls.crt` and `tls.key`, or of `ca.crt` alone where the
                router asks for no certificate; None takes the environment's QUIRE_TLS_DIR, and
                speaks in the clear without it.
            server_name: that the router's certificate must have; None for its role, quire-router.
            api_key: sent with every call; None takes QUIRE_API_KEY from the environment, if set.
            insecure: let the key go over a network in the clear.
            resume_timeout: seconds for which a stream that broke is resumed before its error is
                raised, those not counted in which a router works on it; 0 resumes none.

        Raises:
            ConfigError: a target is no address, the certificates cannot be used, or the key would
                go in the clear and `insecure` does not allow it.
        """
        tls = open_tls(tls_dir)
        targets = parse_targets(target, encrypted=tls is not None)
        for each in targets:
            key = call_metadata(each, api_key, encrypted=tls is not None, insecure=insecure)
            self._metadata = (*PROTOCOL_METADATA, *key)
        self._channels = [self._open(each, tls, server_name or Role.ROUTER) for each in targets]
        # One class serves both kinds of channels; only its types differ.
        self._stub_of_each = list(map(inference_pb2_grpc.InferenceServiceStub, self._channels))
        self._departures = Departures(inference_pb2.AbortRequest)
        # Clients with one list share its routers out between them.
        self._current = random.randrange(len(targets))
        self._closed = threading.Event()
        self._resume_timeout = resume_timeout
        self._watches = RouterWatches(self._stub_of_each, self._resumes)
        self._is_known = False

    @property
    def _stub(self) -> Any:
        """Of the router that answered last."""
        return self._stub_of_each[self._current]

    def _leave(self, stub: Any) -> None:
        """Take the next router from now on, unless another call has left this one already."""
        if stub is self._stub:
            self._current = (self._current + 1) % len(self._stub_of_each)

    def _lost_among_others(self) -> AbstractContextManager[None]:
        """Pass over a router that cannot be reached if there are others."""
        return suppress(*PASSED_OVER) if len(self._stub_of_each) > 1 else nullcontext()

    def _open_stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        options: GenerateOptions,
    ) -> ResumableStream:
        return self._stream_of(
            generate_input(
                prompt, sampling_params, options, self._watches.heartbeat_ms, self._resumes
            ),
            options,
        )

    def _open_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None,
        options: ChatOptions,
    ) -> ResumableStream:
        return self._stream_of(
            chat_input(
                messages, sampling_params, options, self._watches.heartbeat_ms, self._resumes
            ),
            options,
        )

    @property
    def _resumes(self) -> bool:
        return self._resume_timeout > 0

    def _stream_of(
        self, request: GenerateInput | ChatInput, options: GenerateOptions
    ) -> ResumableStream:
        return ResumableStream(
            request,
            len(self._stub_of_each),
            self._resume_timeout,
            self._is_known,
            options.get("timeout"),
        )

    def _unary_arguments(self, options: EmbedOptions) -> Callable[[], dict[str, Any]]:
        """Return what makes the arguments of each attempt at a call that has one answer."""
        metadata, timeout_s = (*self._metadata, *trace_metadata(options)), options.get("timeout")
        began_s = time.monotonic()

        def arguments() -> dict[str, Any]:
            left_s = None
            if timeout_s is not None:
                left_s = max(0.0, timeout_s - (time.monotonic() - began_s))
            return {"timeout": left_s, "metadata": metadata}

        return arguments

    def _call(self, stub: Any, stream: ResumableStream, options: GenerateOptions) -> Any:
        """Generate or chat, or resume what was received of it already."""
        stream.stub, request = stub, stream.request
        arguments = {
            "timeout": stream.remaining_s,
            "metadata": (*self._metadata, *trace_metadata(options)),
        }
        if isinstance(request, ResumeInput):
            call = stub.Resume(message_of(resume_input_to_proto, request), **arguments)
        elif isinstance(request, ChatInput):
            call = stub.Chat(message_of(chat_input_to_proto, request), **arguments)
        else:
            call = stub.Generate(message_of(generate_input_to_proto, request), **arguments)
        return self._watches.watched(stub, call, stream.take_heartbeat)
