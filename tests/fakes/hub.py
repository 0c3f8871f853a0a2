"""A stand-in of Hugging Face's hub: the part of its HTTP API by which models are pulled."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, COMMIT = "someone/tiny", "c" * 40


class Hub:
    """A repository, and what goes wrong with it.

    Attributes:
        files: contents by path.
        large: paths whose SHA-256 the hub knows.
        lies: what is sent in the place of a file.
        cut_after: bytes of a file after which its connection ends; what is asked for from there on
            fails, until this is taken away.
        error: the code that every answer has.
        requested: of files, path and first byte.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.large: set[str] = set()
        self.lies: dict[str, bytes] = {}
        self.cut_after: dict[str, int] = {}
        self.error: str | None = None
        self.gated = False
        self.requested: list[tuple[str, int]] = []
        self.address = ""

    def tree(self) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        for path, content in self.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, object] = {
                "type": "file",
                "path": path,
                "size": len(content),
                "oid": blob,
            }
            if path in self.large:
                oid = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 134}
            entries.append(entry)
        return entries


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        if hub.error is not None:
            self._send(401, b"", {"X-Error-Code": hub.error, "X-Error-Message": "no"})
        elif path == f"/api/models/{NAME}/revision/main":
            self._send_json({"id": NAME, "sha": COMMIT})
        elif path == f"/api/models/{NAME}/tree/{COMMIT}":
            self._send_json(hub.tree())
        elif path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            self._send_file(path.removeprefix(f"/{NAME}/resolve/{COMMIT}/"))
        elif path.startswith(f"/api/models/{NAME}/revision/"):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})

    def _send_file(self, path: str) -> None:
        hub = self.hub
        if hub.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
            return
        content = hub.lies.get(path, hub.files[path])
        asked = self.headers.get("Range", "bytes=0-")
        first = int(asked.removeprefix("bytes=").partition("-")[0])
        hub.requested.append((path, first))
        cut = hub.cut_after.get(path)
        if cut is not None and first >= cut:
            self._send(500, b"", {})
            return
        status = 206 if "Range" in self.headers else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) - first))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[first:cut])
        if cut is not None:
            self.close_connection = True

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve a hub at a free port, while the block runs."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()
