from __future__ import annotations

import pytest

from stoker.sources.object_client import connection_string, with_vendor_settings

FULL = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=a/b+c==;EndpointSuffix=core.windows.net"
OF_FULL = {"account_name": "me", "account_key": "a/b+c==", "endpoint": "https://me.blob.core.windows.net"}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (FULL, OF_FULL),
        (f" {FULL}; ", OF_FULL),
        ("AccountName=me;AccountKey=k", {"account_name": "me", "account_key": "k"}),
        (
            "BlobEndpoint=https://me.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=x%3D",
            {"endpoint": "https://me.blob.core.windows.net/", "sas_token": "sv=1&sig=x%3D"},
        ),
        ("UseDevelopmentStorage=true", {"use_emulator": "true"}),
    ],
)
def test_connection_string(text: str, options: dict[str, str]) -> None:
    assert connection_string(text) == options


@pytest.mark.parametrize("text", ["the-secret", "AccountKey=the-secret", ";"])
def test_damaged_connection_string_is_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="neither AccountName nor BlobEndpoint") as caught:
        connection_string(text)
    assert "the-secret" not in str(caught.value)


def test_given_options_come_first() -> None:
    environment = {"AZURE_STORAGE_CONNECTION_STRING": FULL}
    assert with_vendor_settings("az", {"account_key": "mine"}, environment) == {**OF_FULL, "account_key": "mine"}
    assert with_vendor_settings("az", {"connection_string": "AccountName=x"}, environment) == {"account_name": "x"}
    assert with_vendor_settings("s3", {"region": "r"}, environment) == {"region": "r"}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"base_url": "http://127.0.0.1:9", "skip_signature": True}),
        ({"skip_signature": False}, {"base_url": "http://127.0.0.1:9", "skip_signature": False}),
        ({"service_account": "path"}, {"base_url": "http://127.0.0.1:9", "service_account": "path"}),
        ({"base_url": "http://a"}, {"base_url": "http://a"}),
    ],
)
def test_emulator_of_google(given: dict[str, object], options: dict[str, object]) -> None:
    for host in ("127.0.0.1:9", "http://127.0.0.1:9"):
        assert with_vendor_settings("gs", given, {"STORAGE_EMULATOR_HOST": host}) == options
    assert with_vendor_settings("s3", given, {"STORAGE_EMULATOR_HOST": host}) == given
    assert with_vendor_settings("gs", {}, {"STORAGE_EMULATOR_HOST": host, "GOOGLE_BASE_URL": "http://b"}) == {}
