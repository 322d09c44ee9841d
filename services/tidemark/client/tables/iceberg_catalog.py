# SPDX-License-Identifier: Apache-2.0
"""Opens the catalog of an Iceberg table: SQLite in the archive's directory, or any catalog of pyiceberg, such as REST.

Secrets come from files, and no error shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tidemark.model import ErrorCode, TidemarkError, invalid_request
from tidemark.rpc.security.token_source import TokenSource

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_NAME: Final = "tidemark"
"""Name of the catalog in pyiceberg's configuration: .pyiceberg.yaml, or PYICEBERG_CATALOG__TIDEMARK__URI and so on."""
_FILES: Final = {"token-file": "token", "credential-file": "credential"}
"""Tidemark's properties that name a file, and the properties of pyiceberg that get the content."""
_SECRET: Final = re.compile(r"token|credential|secret|password|authorization|auth$", re.IGNORECASE)
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_ERROR_CHARACTERS: Final = 300


def catalog_properties(pairs: Sequence[str]) -> dict[str, str]:
    """Properties of a catalog from KEY=VALUE texts of a command line, which all users of the machine can read.

    Raises:
        ValueError: no KEY=VALUE, or a secret.
    """
    found = {}
    for pair in pairs:
        key, is_pair, value = pair.partition("=")
        if not is_pair or not key:
            raise ValueError("--catalog: expected KEY=VALUE, such as type=rest and uri=https://catalog")
        if _is_secret(key, value):
            raise ValueError(
                f"--catalog {key} has a secret, which other users of the machine can read in the list of processes. "
                "Name a file with token-file=PATH or credential-file=PATH, or set PYICEBERG_CATALOG__TIDEMARK__TOKEN"
            )
        found[key] = value
    return found


def _is_secret(key: str, value: str) -> bool:
    return key not in _FILES and bool(_SECRET.search(key) or (_password(value) and "://" in value))


def _password(uri: str) -> str | None:
    try:
        return urlsplit(uri).password
    except ValueError:
        return None


@contextmanager
def opened_catalog(root: Path, properties: Mapping[str, str] | None) -> Iterator[Catalog]:
    """Open a catalog, and close it at the end.

    Args:
        root: directory of the archive.
        properties: properties of pyiceberg, and `token-file` or `credential-file`: paths of files that are read now.
            None: SQLite and a warehouse in the archive's directory.

    Raises:
        ImportError: pyiceberg is not installed.
        TidemarkError: INVALID_CONFIG: the properties do not fit; REQUEST_TIMED_OUT: the catalog does not answer, or
            failed; AUTHENTICATION_FAILED; INVALID_REQUEST: the catalog refuses a request. Errors of the body are
            reported in the same way.
    """
    try:
        import pyiceberg.catalog  # noqa: F401
    except ImportError:
        raise ImportError('Iceberg tables need pyiceberg: pip install "tidemark[lake]"') from None
    given = _of_archive(root) if properties is None else _complete(properties)
    with _plain_errors(given), closing(_load(given)) as catalog:
        yield catalog


def _of_archive(root: Path) -> dict[str, str]:
    from sqlalchemy import URL

    root.mkdir(parents=True, exist_ok=True)
    database = URL.create("sqlite", database=f"{root}/catalog.db").render_as_string()
    return {"type": "sql", "uri": database, "warehouse": f"file://{root}/iceberg"}


def _complete(properties: Mapping[str, str]) -> dict[str, Any]:
    """The properties with the content of files; they override pyiceberg's own configuration."""
    from pyiceberg.utils.config import Config

    configured: Mapping[str, Any] = Config().get_catalog_config(_NAME) or {}
    found: dict[str, Any] = {**configured, **properties}
    for key in _FILES.keys() & found.keys():
        found[_FILES[key]] = TokenSource(found.pop(key)).current()
    uri = urlsplit(found.get("uri", ""))
    if uri.scheme == "http" and uri.hostname not in _LOOPBACK and _has_secret(found):
        raise _invalid(f"the token for {_shown(found)} needs https: others could read it in plain text")
    return found


def _load(properties: dict[str, Any]) -> Catalog:
    from pydantic import ValidationError
    from pyiceberg.catalog import load_catalog

    from tidemark.client.tables.rest_catalog import BoundedRestCatalog

    is_web = properties.get("uri", "").startswith(("http://", "https://"))
    if is_web and properties.get("type", "rest").lower() == "rest" and "py-catalog-impl" not in properties:
        auth: dict[str, Any] = {"auth": {"type": "noop"}}  # pyiceberg's default sends "Bearer None"
        given = properties if _has_secret(properties) else {**auth, **properties}
        try:
            return BoundedRestCatalog(_NAME, **given)
        except ValidationError:
            raise _invalid(f"{_shown(properties)} is not an Iceberg REST catalog: it answers something else") from None
    try:
        return load_catalog(_NAME, **properties)
    except ValueError:  # its text has all properties, and with them the secrets
        names = ", ".join(sorted(properties)) or "none"
        raise _invalid(
            "the properties of the Iceberg catalog do not fit. Want type=rest and uri=https://..., or those of another "
            f"catalog of pyiceberg. The names that are set: {names}"
        ) from None


def _has_secret(properties: Mapping[str, Any]) -> bool:
    return any(key in properties for key in _FILES.values())


@contextmanager
def _plain_errors(properties: Mapping[str, Any]) -> Iterator[None]:
    """Report an error of the catalog in one sentence, without secrets."""
    from pyiceberg import exceptions
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    catalog = f"the Iceberg catalog {_shown(properties)}"
    refused = (
        exceptions.UnauthorizedError,
        exceptions.ForbiddenError,
        exceptions.AuthorizationExpiredError,
        exceptions.OAuthError,
    )
    failed = (
        exceptions.ServerError,
        exceptions.ServiceUnavailableError,
        exceptions.CommitStateUnknownException,
        exceptions.TooManyRequestsError,
    )
    try:
        yield
    except refused as error:
        named = "the token" if _has_secret(properties) else "a request without a token"
        sentence = f"{catalog} refuses {named}: {_text(error, properties)}"
        raise TidemarkError(ErrorCode.AUTHENTICATION_FAILED, sentence) from None
    except RequestException as error:
        reason = re.search(r"\[(?:Errno|SSL)[^\]]*\] ?([^'\"()]+)", str(error))
        told = reason[1].strip() if reason else type(error).__name__
        raise _away(f"{catalog} does not answer: {told}") from None
    except (*failed, SQLAlchemyError) as error:
        raise _away(f"{catalog} failed: {_text(getattr(error, 'orig', None) or error, properties)}") from None
    except exceptions.RESTError as error:
        sentence = f"{catalog} refuses a request: {_text(error, properties)}"
        raise invalid_request(sentence) from None


def _away(sentence: str) -> TidemarkError:
    after = "no archived row is lost, and a later run completes the table"
    return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"{sentence}; {after}")


def _text(error: BaseException, properties: Mapping[str, Any]) -> str:
    """The first line of an error, without the secrets of the catalog."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    for secret in _secrets(properties):
        text = text.replace(secret, "…")
    return text[:_ERROR_CHARACTERS]


def _secrets(properties: Mapping[str, Any], *, is_secret: bool = False) -> Iterator[str]:
    for key, value in properties.items():
        hides = is_secret or bool(_SECRET.search(key))
        if isinstance(value, Mapping):
            yield from _secrets(value, is_secret=hides)
        elif hides and value:
            yield str(value)


def _shown(properties: Mapping[str, Any]) -> str:
    """The catalog's address, without a password."""
    uri = properties.get("uri", "")
    password = _password(uri)
    return (uri if password is None else uri.replace(f":{password}@", ":…@")) or f'"{_NAME}"'


def _invalid(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_CONFIG, sentence)
