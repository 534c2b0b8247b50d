"""Where S3 credentials come from: obstore's own ways and profiles, each against a server of this test."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")

EXPIRES = "2099-01-01T00:00:00Z"
READ = """
from stoker.sources.object_client import Options, read
import json, sys
print(read(Options(json.loads(sys.argv[1])), "s3://bucket/a", [(0, 4)])[0].decode())
"""


class Company(ThreadingHTTPServer):
    """A store, and beside it the services that give credentials for it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: list[tuple[str, str]] = []  # credentials and tokens of requests to the store
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Company

    def do_GET(self) -> None:
        keys = {
            "AccessKeyId": "",
            "SecretAccessKey": "s",
            "Token": "the token",
            "Expiration": EXPIRES,
            "Code": "Success",
        }
        if self.path.startswith("/bucket/a"):
            identity = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
            token = self.headers.get("x-amz-security-token", "")
            self.server.asked.append((identity[1] if identity else "", token))
            headers = {"ETag": '"1"', "Last-Modified": "Fri, 01 May 2026 00:00:00 GMT", "Content-Range": "bytes 0-3/4"}
            self._answer(b"data", 206, headers)
        elif self.path.endswith("/security-credentials/"):
            self._answer(b"the-role")
        elif self.path.endswith("/security-credentials/the-role"):
            assert self.headers["x-aws-ec2-metadata-token"] == "a token of IMDSv2"
            self._answer(
                json.dumps({**keys, "AccessKeyId": "INSTANCE", "Type": "AWS-HMAC", "LastUpdated": EXPIRES}).encode()
            )
        elif self.path == "/container":
            assert self.headers["Authorization"] == "a token of the pod"
            self._answer(json.dumps({**keys, "AccessKeyId": "CONTAINER"}).encode())
        else:
            self._answer(b"", 404)

    def do_PUT(self) -> None:
        self._answer(b"a token of IMDSv2")

    def do_POST(self) -> None:
        query = self.path + self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        assert "AssumeRoleWithWebIdentity" in query and "a-web-token" in query and "WebIdentityToken" in query
        self._answer(
            b"<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            b"<SessionToken>the token</SessionToken><SecretAccessKey>s</SecretAccessKey>"
            b"<Expiration>" + EXPIRES.encode() + b"</Expiration><AccessKeyId>WEB</AccessKeyId>"
            b"</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )

    def _answer(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def certified(server: Company, folder: Path) -> None:
    """Lets a server speak TLS, with a certificate of its own."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    begin = datetime(2020, 1, 1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + timedelta(days=36500))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(plain + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.url = server.url.replace("http:", "https:")


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Company]:
    yield from served(tmp_path)


@pytest.fixture
def company() -> Iterator[Company]:
    yield from served()


def served(certificates: Path | None = None) -> Iterator[Company]:
    with Company() as server:
        if certificates is not None:
            certified(server, certificates)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def read(
    company: Company, tmp_path: Path, options: dict[str, Any] | None = None, **environment: str
) -> tuple[str, str]:
    """The identity and token with which an object was read in a new process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    places = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
    every = {
        **kept,
        **places,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    every |= {"AWS_ENDPOINT_URL": company.url} | environment
    every = {name: value for name, value in every.items() if value}
    command = [sys.executable, "-c", READ, json.dumps(options or {})]
    run = subprocess.run(command, env=every, capture_output=True, text=True, timeout=100)
    if run.returncode:
        raise RuntimeError(run.stderr)
    assert run.stdout == "data\n"
    return company.asked[-1]


def test_web_identity_as_kubernetes_sets_it(company: Company, secure: Company, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-web-token")
    found = read(
        company,
        tmp_path,
        {"client_options": {"allow_invalid_certificates": True}},  # STS is asked by https alone
        AWS_WEB_IDENTITY_TOKEN_FILE=str(tmp_path / "token"),
        AWS_ROLE_ARN="arn:aws:iam::123456789012:role/reader",
        AWS_ENDPOINT_URL_STS=secure.url,
    )
    assert found == ("WEB", "the token")


def test_the_role_of_an_instance(company: Company, tmp_path: Path) -> None:
    assert read(company, tmp_path, AWS_METADATA_ENDPOINT=company.url) == ("INSTANCE", "the token")


def test_the_role_of_a_pod(company: Company, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a token of the pod")
    found = read(
        company,
        tmp_path,
        AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{company.url}/container",
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(tmp_path / "token"),
    )
    assert found == ("CONTAINER", "the token")


@pytest.fixture
def profiles(company: Company, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    program = f"{sys.executable} {tmp_path / 'program.py'}"
    (tmp_path / "program.py").write_text('print(\'{"Version": 1, "AccessKeyId": "PROGRAM", "SecretAccessKey": "s"}\')')
    (tmp_path / "config").write_text(
        f"[profile made]\nregion = eu-north-1\nendpoint_url = {company.url}\ncredential_process = {program}\n"
        "[profile empty]\nregion = eu-north-1\n"
    )
    (tmp_path / "credentials").write_text("[plain]\naws_access_key_id = PROFILE\naws_secret_access_key = s\n")


@pytest.mark.usefixtures("profiles")
def test_a_profile_of_the_options_or_the_environment(company: Company, tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "KEYS", "AWS_SECRET_ACCESS_KEY": "s"}
    assert read(company, tmp_path, {"profile": "plain"}, **keys) == ("PROFILE", "")
    assert read(company, tmp_path, AWS_PROFILE="plain") == ("PROFILE", "")
    assert read(company, tmp_path, AWS_PROFILE="plain", **keys) == ("KEYS", "")


@pytest.mark.usefixtures("profiles")
def test_a_profile_has_a_program_a_region_and_an_endpoint(company: Company, tmp_path: Path) -> None:
    assert read(company, tmp_path, {"profile": "made"}, AWS_ENDPOINT_URL="", AWS_REGION="") == ("PROGRAM", "")


@pytest.mark.usefixtures("profiles")
def test_a_profile_without_credentials_is_named(company: Company, tmp_path: Path) -> None:
    for name in ("absent", "empty"):
        with pytest.raises(
            RuntimeError, match=f"ValueError: the AWS profile '{name}' gives no credentials: .*sso login"
        ):
            read(company, tmp_path, {"profile": name}, AWS_EC2_METADATA_DISABLED="true")
