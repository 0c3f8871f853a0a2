"""`quire probe` against a port that answers as the admin port does."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from typer.testing import CliRunner

from launch.cli.main import app


@contextmanager
def admin_port(answers: dict[str, tuple[int, str]]) -> Iterator[int]:
    """A server of these paths, on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def probe(port: int, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["probe", "--admin-port", str(port), *arguments])
    return result.exit_code, result.output


def test_a_service_that_is_ready_is_0() -> None:
    with admin_port({"/readyz": (200, "ok\n")}) as port:
        assert probe(port) == (0, "ok\n")


def test_one_that_is_not_is_1_with_its_reason() -> None:
    with admin_port({"/readyz": (503, "no scheduler\n"), "/livez": (200, "ok\n")}) as port:
        status, output = probe(port)
        assert (status, "503 no scheduler" in output) == (1, True)
        assert probe(port, "--path", "/livez")[0] == 0


def test_a_port_where_no_process_listens_is_1() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        status, output = probe(unused.getsockname()[1])
    assert (status, "refused" in output) == (1, True)


def test_a_service_that_does_not_answer_is_1_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        status, output = probe(silent.getsockname()[1], "--timeout-s", "0.2")
    assert (status, "timed out" in output) == (1, True)


def test_an_answer_that_is_not_http_is_1() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1024)
                peer.sendall(b"\x00\x00\x12\x04")

        thread = threading.Thread(target=answer)
        thread.start()
        status, _output = probe(listener.getsockname()[1])
        thread.join()
    assert status == 1
