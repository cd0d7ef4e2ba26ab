"""What an object store answers, as errors for people."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from pipeline.errors import ConfigurationError, RunFailed
from scoreshield.errors import ScoreShieldError
from scoreshield.printable import printable

_DENIED = re.compile(
    r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken"
    r"|\b401 Unauthorized|\b403 Forbidden"
)


@contextlib.contextmanager
def errors_for_people(place: str) -> Iterator[None]:
    """Turn an object store's errors into errors for people, on one line and without a secret.

    Raises
    ------
    FileNotFoundError
        There is no such object.
    ConfigurationError
        There is no such bucket, or the credentials are not accepted.
    RunFailed
        The object store does not answer, or answers with an error.
    """
    try:
        yield
    except ScoreShieldError:
        raise
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise _no_bucket(place) from None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place) from None
    except Exception as error:
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            NotSupportedError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        if isinstance(error, AlreadyExistsError | NotSupportedError) or not isinstance(
            error, BaseError
        ):
            raise
        text = str(error)
        if "NoSuchBucket" in text:
            raise _no_bucket(place) from None
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if denied or _DENIED.search(text):
            raise ConfigurationError(
                f"{place}: the object store refuses access{_code(text)}; check the credentials in "
                "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, "
                "AWS_REGION) and the bucket's policy"
            ) from None
        raise RunFailed(
            f"{place}: the object store failed ({first_line(error)}); finished work is kept, run "
            "the same command again once it answers"
        ) from None


def _no_bucket(place: str) -> ConfigurationError:
    return ConfigurationError(
        f"{place}: there is no such bucket; make it, or check the name and AWS_ENDPOINT_URL"
    )


def first_line(error: Exception) -> str:
    """What an error says, without the answer's body and without what a URL may carry."""
    text = str(error).partition("\n")[0].partition(": <")[0]
    return printable(re.sub(r"//[^/@\s]*@", "//", text).strip()) + _code(str(error))


def _code(text: str) -> str:
    """The code in the body of an answer, which says more than the status."""
    found = re.search(r"<Code>([A-Za-z]+)</Code>", text)
    return f", {found[1]}" if found else ""
