"""A server that answers as the Hugging Face Hub does, and one that it redirects to: `python fake_hub.py` prints a port.

`PUT /_state` takes a JSON object: `repositories` by "datasets/owner/name", each with `branches` (name to commit),
`commits` (commit to a dict of paths and contents in base64) and, if it is gated, `token`; `faults`, the statuses of the
next requests to the Hub, 0 for none; and `expire`, whether all addresses so far are refused. `GET /_requests` gives the
requests since then: server, method, path, range, authorization. Contents of 100 bytes and more lie on the other server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 3
"""Entries of one answer of a listing."""
_API = re.compile(r"/api/(datasets|models|spaces)/([^/]+/[^/]+)/(revision|tree|paths-info)/([^/]+)(?:/(.*))?")
_FILE = re.compile(r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class State:
    """What both servers share."""

    def __init__(self) -> None:
        self.repositories: dict[str, Any] = {}
        self.contents: dict[str, bytes] = {}
        self.faults: list[int] = []
        self.requests: list[list[Any]] = []
        self.signature = 1
        self.cdn_port = 0

    def set(self, given: dict[str, Any]) -> None:
        self.repositories = given.get("repositories", self.repositories)
        self.faults = list(given.get("faults", ()))
        self.signature += bool(given.get("expire"))
        self.requests = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: State
    name = "hub"

    def do_PUT(self) -> None:
        self.state.set(json.loads(self.body()))
        self.answer(200)

    def do_GET(self) -> None:
        if self.path == "/_requests":
            return self.answer(200, json.dumps(self.state.requests).encode())
        body = self.body()
        if self.path == "/api/agent-harnesses":  # which the library asks for once in each process
            return self.answer(404)
        told = [self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization")]
        self.state.requests.append([self.name, *told])
        return self.found(body)

    do_HEAD = do_POST = do_GET

    def found(self, body: bytes) -> None:
        fault = self.state.faults.pop(0) if self.state.faults else 0
        if fault:
            return self.answer(fault, b"a fault")
        url = urlsplit(self.path)
        if match := _API.fullmatch(url.path):
            return self.api(*match.groups(), query=url.query, body=body)
        if match := _FILE.fullmatch(url.path):
            files = self.files(match[1] or "models", match[2], match[3])
            return None if files is None else self.file(files, unquote(match[4]))
        return self.answer(404)

    def files(self, kind: str, name: str, revision: str) -> dict[str, bytes] | None:
        """Returns the files of a commit, or answers that they cannot be had."""
        found = self.state.repositories.get(f"{kind}/{name}")
        if found is None:
            return self.answer(401, **{"X-Error-Code": "RepoNotFound"})
        token = found.get("token")
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            return self.answer(401, **{"X-Error-Code": "GatedRepo"})
        self.commit = found["branches"].get(unquote(revision), revision)
        if self.commit not in found["commits"]:
            return self.answer(404, **{"X-Error-Code": "RevisionNotFound"})
        return {path: base64.b64decode(data) for path, data in found["commits"][self.commit].items()}

    def api(self, kind: str, name: str, what: str, revision: str, path: str | None, *, query: str, body: bytes) -> None:
        files = self.files(kind, name, revision)
        if files is None:
            return None
        if what == "revision":
            return self.answer(200, json.dumps({"id": name, "sha": self.commit}).encode())
        if what == "paths-info":
            return self.answer(200, self.entries({path: files[path] for path in self.wanted(body) if path in files}))
        folder = f"{unquote(path)}/" if path else ""
        inside = {path: data for path, data in sorted(files.items()) if path.startswith(folder)}
        if folder and not inside:
            return self.answer(404, **{"X-Error-Code": "EntryNotFound"})
        begin = int(parse_qs(query).get("cursor", ["0"])[0])
        names = list(inside)[begin : begin + PAGE]
        link = f"<http://{self.headers['Host']}{urlsplit(self.path).path}?recursive=true&cursor={begin + PAGE}>"
        more = {"Link": f'{link}; rel="next"'} if begin + PAGE < len(inside) else {}
        return self.answer(200, self.entries({name: inside[name] for name in names}), **more)

    def wanted(self, body: bytes) -> list[str]:
        return parse_qs(body.decode())["paths"]

    def entries(self, files: dict[str, bytes]) -> bytes:
        folders = {path.rpartition("/")[0] for path in files} - {""}
        found: list[dict[str, Any]] = [{"type": "directory", "path": path, "oid": "0", "size": 0} for path in folders]
        for path, data in files.items():
            entry = {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            if len(data) >= 100:
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            found.append(entry)
        return json.dumps(found).encode()

    def file(self, files: dict[str, bytes], path: str) -> None:
        if path not in files:
            return self.answer(404, **{"X-Error-Code": "EntryNotFound"})
        data = files[path]
        if len(data) < 100 and not (path.startswith("leads elsewhere") and self.command == "GET"):
            return self.ranged(data)
        name = hashlib.sha256(data).hexdigest()
        self.state.contents[name] = data
        address = f"http://127.0.0.1:{self.state.cdn_port}/{name}?Signature=secret-{self.state.signature}"
        told = {"X-Linked-Size": len(data), "X-Linked-ETag": f'"{name}"', "X-Repo-Commit": self.commit}
        return self.answer(302, Location=address, **told)

    def ranged(self, data: bytes) -> None:
        told = {"ETag": '"of this server"', "Accept-Ranges": "bytes"}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if match is None:
            return self.answer(200, data, **told)
        begin = int(match[1])
        end = min(int(match[2] or len(data)) + 1, len(data))
        if begin >= len(data):
            return self.answer(416)
        return self.answer(206, data[begin:end], **told, **{"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, data: bytes = b"", **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


class OtherHandler(Handler):
    """The server of large files: takes signed addresses alone, and refuses who shows it a token."""

    name = "other"

    def found(self, body: bytes) -> None:
        url = urlsplit(self.path)
        data = self.state.contents.get(url.path[1:])
        if parse_qs(url.query).get("Signature") != [f"secret-{self.state.signature}"]:
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        return self.answer(404) if data is None else self.ranged(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Handler.state = State()
    hub, other = Server(("127.0.0.1", 0), Handler), Server(("127.0.0.1", 0), OtherHandler)
    Handler.state.cdn_port = other.server_address[1]
    print(hub.server_address[1], flush=True)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    hub.serve_forever()
