# SPDX-License-Identifier: Apache-2.0
"""pyiceberg's client of a REST catalog, with a time limit for each request."""

from __future__ import annotations

from typing import Any, Final

from pyiceberg.catalog.rest import RestCatalog
from requests.adapters import HTTPAdapter  # type: ignore[import-untyped, unused-ignore]

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0


class _Bounded(HTTPAdapter):  # type: ignore[misc, unused-ignore]
    def send(self, *given: Any, **options: Any) -> Any:
        return super().send(*given, **{**options, "timeout": options.get("timeout") or (CONNECT_S, ANSWER_S)})


class BoundedRestCatalog(RestCatalog):
    """A REST catalog that fails instead of waiting without end."""

    def _config_headers(self, session: Any) -> None:
        """Prepare a session; called before its first request."""
        super()._config_headers(session)
        for scheme in ("https://", "http://"):
            session.mount(scheme, _Bounded())
