"""What went wrong in a request: whether it may pass, and the error of Python or Stoker for it."""

from __future__ import annotations

import re
from typing import NoReturn

from stoker.errors import ObjectStoreError
from stoker.sources.urls import shown, without_secrets

_STATUS = re.compile(r"status code: (\d{3})")
_RETRIES = re.compile(r"after (\d+) retries")
_ANSWER = re.compile(r"status code: \d{3}[ \w]*")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}


class WrongLengthError(Exception):
    """An answer holds more or fewer bytes than were asked for."""


def may_pass(error: BaseException) -> bool:
    """Returns whether a request that failed so may succeed when it is made again, and obstore has not done so."""
    if isinstance(error, WrongLengthError):
        return True
    text = first_line(error)
    if type(error).__name__ not in ("GenericError", "JoinError") or _RETRIES.search(text) or "builder error" in text:
        return False
    status = _STATUS.search(text)
    return "NotPartial" not in str(error) if status is None else status[1] in ("408", "429")


def raise_as_ours(error: BaseException, url: str, tries: int, seconds: float) -> NoReturn:
    """Raises the error of Python or Stoker for one of obstore.

    Raises:
        FileNotFoundError: there is no such object or bucket.
        PermissionError: credentials are missing, wrong or expired, or do not allow it.
        ObjectStoreError: the store cannot be reached, or answers with errors.
    """
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        raise error
    if isinstance(error, ValueError):
        raise ValueError(f"{shown(url)}: {first_line(error)}") from None
    name, text, place = type(error).__name__, first_line(error), shown(url)
    found = _STATUS.search(text)
    status = found[1] if found else ""
    code = (_CODE.search(str(error)) or [None, ""])[1]
    if isinstance(error, FileNotFoundError) or code == "NoSuchBucket" or status == "404":
        raise FileNotFoundError(f"{place}: there is no such bucket or object (it says {code or status})") from None
    if "169.254.169.254" in text or "metadata.google" in text:
        raise PermissionError(
            f"{place}: no credentials were found, neither in the environment nor in storage_options, and this machine "
            "has no service that gives them. For a public bucket pass storage_options={'skip_signature': True}."
        ) from None
    if name in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403") or code in _EXPIRED:
        why = "the credentials have expired" if code in _EXPIRED else f"access was refused ({code or status or name})"
        raise PermissionError(
            f"{place}: {why}. Credentials come from the environment (AWS_ACCESS_KEY_ID, "
            "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, ...) or storage_options; a signed URL is "
            "valid for a time."
        ) from None
    repeated = _RETRIES.search(text)
    tries += int(repeated[1]) if repeated else 0
    hint = (
        "The server does not answer ranges of bytes, by which sources read: copy the files to another one."
        if "NotPartial" in str(error)
        else "Is the endpoint right, and can this machine reach it? More time and tries: storage_options="
        "{'retry_config': {'max_retries': 20, 'retry_timeout': 600}}."
    )
    raise ObjectStoreError(
        f"{place} cannot be reached: {without_secrets(text)} (tried {tries} times in {seconds:.1f} s"
        f"{', it says ' + code if code else ''}). {hint}"
    ) from None


def first_line(error: BaseException) -> str:
    """Returns what obstore says, without the answer's body and its own state, which may hold keys."""
    text = str(error).partition("\n")[0]
    answer = _ANSWER.search(text)
    return (text if answer is None else text[: answer.end()]).strip()
