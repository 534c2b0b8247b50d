"""Profiles of AWS (`~/.aws/config`, `~/.aws/credentials`): SSO, assumed roles and programs, by boto3.

obstore itself finds keys in the environment, web identity, and the roles of containers and instances.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from stoker.errors import MissingExtraError

_STRONGER = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE")
"""Variables that decide before `AWS_PROFILE` does."""


def with_profile(config: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns further arguments of obstore's S3Store: the credentials of the profile, if there is one to be used.

    It is that of the option `profile`; else that of `AWS_PROFILE`, if boto3 is installed and neither options nor
    environment have keys. Its region and endpoint are added to `config`, from which `profile` is removed.
    """
    name = config.pop("profile", None)
    if name is None:
        name = environment.get("AWS_PROFILE")
        has_keys = any("access_key_id" in option or "skip_signature" in option for option in config)
        if not name or has_keys or any(map(environment.get, _STRONGER)) or importlib.util.find_spec("boto3") is None:
            return {}
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtraError(
            f"the AWS profile {name!r} is read by boto3, which is not installed: pip install boto3"
        ) from error
    try:
        session = boto3.Session(profile_name=name)
        provider = Boto3CredentialProvider(session)
        endpoint = session._session.get_scoped_config().get("endpoint_url")
    except (BotoCoreError, ValueError) as error:
        raise ValueError(
            f"the AWS profile {name!r} gives no credentials: {error}. See `aws configure list --profile {name}`, and "
            "for SSO `aws sso login`."
        ) from None
    region = provider.config.pop("region", None)
    if region is not None and not any("region" in option for option in config):
        config["region"] = region
    if endpoint is not None and not any("endpoint" in option for option in config):
        config["endpoint"] = endpoint
    return {"credential_provider": provider}
