"""A proxy before a server of S3, which injects faults: `python faulty_proxy.py PORT` prints its own port.

`PUT /_faults` takes a JSON list: the faults of the next GET and HEAD requests, one each, "" for none. `GET /_requests`
gives the requests since then, as a JSON list of [method, path, range].
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

XML = '<?xml version="1.0"?><Error><Code>{}</Code><AWSAccessKeyId>AKIDSECRET</AWSAccessKeyId></Error>'
STATUSES = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "429": (429, "TooManyRequests"),
    "403": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/_faults":
            self.server.faults, self.server.requests = json.loads(body), []
            return self.answer(200, b"")
        return self.forward(body, "")

    def do_GET(self) -> None:
        if self.path == "/_requests":
            return self.answer(200, json.dumps(self.server.requests).encode())
        fault = self.server.faults.pop(0) if self.server.faults else ""
        self.server.requests.append([self.command, self.path, self.headers.get("Range")])
        if fault in STATUSES:
            status, code = STATUSES[fault]
            return self.answer(status, XML.format(code).encode())
        return self.forward(b"", fault)

    do_HEAD = do_GET

    def forward(self, body: bytes, fault: str) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() != "connection" and not (fault == "no ranges" and name.lower() == "range")
        }
        upstream.request(self.command, self.path, body or None, headers)
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        given = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server")
        }
        if fault == "slow":
            time.sleep(1.5)
        if fault == "changed":
            given["ETag"] = '"another"'
        if fault == "short":
            data = data[: len(data) // 2]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_response(answer.status)
        for name, value in {**given, "Content-Length": length or "0"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client has given up
            super().handle()


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = upstream
        self.faults: list[str] = []
        self.requests: list[list[str | None]] = []


if __name__ == "__main__":
    proxy = Proxy(int(sys.argv[1]))
    print(proxy.server_address[1], flush=True)
    proxy.serve_forever()
