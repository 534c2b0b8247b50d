"""Settings of stores under names of their vendors that obstore does not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PARTS = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "blobendpoint": "endpoint",
    "sharedaccesssignature": "sas_token",
}
"""The parts of a connection string of Azure, in lower case."""


def with_vendor_settings(kind: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options of a store, with those that the environment has under other names.

    Read are `STORAGE_EMULATOR_HOST` (an emulator of Google's store, without credentials), and
    `AZURE_STORAGE_CONNECTION_STRING`, also as the option `connection_string`. What is given comes first.

    Args:
        kind: of the store: "s3", "gs", "az" or "http".
        given: options by obstore's names.
        environment: variables.

    Raises:
        ValueError: a connection string is none. The message does not show it.
    """
    found = dict(given)
    if kind == "gs" and not {"base_url", "google_base_url"} & found.keys() and "GOOGLE_BASE_URL" not in environment:
        host = environment.get("STORAGE_EMULATOR_HOST", "")
        if host:
            found["base_url"] = host if "://" in host else f"http://{host}"
            if not any("service_account" in name or "credentials" in name for name in found):
                found.setdefault("skip_signature", True)
    if kind == "az":
        text = found.pop("connection_string", environment.get("AZURE_STORAGE_CONNECTION_STRING", ""))
        for name, value in connection_string(text).items() if text else ():
            found.setdefault(name, value)
    return found


def connection_string(text: str) -> dict[str, str]:
    """Returns the options that a connection string of Azure holds: `AccountName=...;AccountKey=...;...`.

    Raises:
        ValueError: it is none. The message does not show it.
    """
    pairs = [part.partition("=") for part in text.strip().split(";") if part.strip()]
    values = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if values.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": "true"}
    found = {ours: values[name] for name, ours in _PARTS.items() if name in values}
    if "account_name" not in found and "endpoint" not in found:
        raise ValueError(
            "the connection string of Azure (AZURE_STORAGE_CONNECTION_STRING, or connection_string in storage_options) "
            "has neither AccountName nor BlobEndpoint: copy it anew from the account's page, under access keys"
        )
    if "endpoint" not in found and values.keys() & {"defaultendpointsprotocol", "endpointsuffix"}:
        scheme = values.get("defaultendpointsprotocol", "https")
        suffix = values.get("endpointsuffix", "core.windows.net")
        found["endpoint"] = f"{scheme}://{found['account_name']}.blob.{suffix}"
    return found
