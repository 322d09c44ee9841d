# SPDX-License-Identifier: Apache-2.0
"""An Iceberg REST catalog in this process, with the requests that pyiceberg makes, over a catalog in SQLite.

Like Apache Iceberg's own server, it numbers the schemas of a table itself. Its answers can be made to fail.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg import exceptions
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.update import AddSchemaUpdate, TableUpdate

_STATUSES = {
    exceptions.NoSuchTableError: 404,
    exceptions.NoSuchNamespaceError: 404,
    exceptions.NamespaceAlreadyExistsError: 409,
    exceptions.TableAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409,
}


class _Http(ThreadingHTTPServer):
    def handle_error(self, *given: Any) -> None:
        """A client may end before its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*given)


class RestServer:
    """The server's address and state.

    Attributes:
        uri: its address.
        token: that a request must have; "": none.
        requests: method, path and Authorization header of each request.
        failing: returns the status of a failing request, by method and path; 0: the request succeeds.
        lost: returns whether the answer to a request gets lost after its execution, by method and path.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        self.token = ""
        self.requests: list[tuple[str, str, str]] = []
        self.failing: Callable[[str, str], int] = lambda *_: 0
        self.lost: Callable[[str, str], bool] = lambda *_: False
        self.catalog = SqlCatalog("served", uri=f"sqlite:///{root}/served.db", warehouse=(root / "warehouse").as_uri())
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self.uri = f"http://127.0.0.1:{self._http.server_port}"

    @contextmanager
    def serving(self) -> Iterator[RestServer]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with closing(self.catalog):
                yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, Any]:
        with self._lock:
            self.requests.append((method, path, authorization))
            status = self.failing(method, path)
            if not status and self.token and authorization != f"Bearer {self.token}":
                status = 401
            if status:
                return status, _error("Refused", f"no answer for {authorization or 'no token'}", status)
            try:
                found = self._done(method, path.strip("/").split("/"), body)
            except tuple(_STATUSES) as error:
                found = _STATUSES[type(error)], _error(type(error).__name__, str(error), _STATUSES[type(error)])
            return (502, "lost") if self.lost(method, path) else found

    def _done(self, method: str, parts: list[str], body: bytes) -> tuple[int, Any]:
        match method, parts:
            case "GET", ["v1", "config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["v1", "namespaces"]:
                asked = json.loads(body)
                self.catalog.create_namespace(tuple(asked["namespace"]))
                return 200, {"namespace": asked["namespace"], "properties": {}}
            case "POST", ["v1", "namespaces", space, "tables"]:
                wanted = json.loads(body)
                schema = Schema.model_validate(wanted["schema"])
                made = self.catalog.create_table((space, wanted["name"]), schema, properties=wanted["properties"])
                return 200, _described(made)
            case "GET", ["v1", "namespaces", space, "tables", name]:
                return 200, _described(self.catalog.load_table((space, name)))
            case "DELETE", ["v1", "namespaces", space, "tables", name]:
                self.catalog.drop_table((space, name))
                return 200, {}
            case "POST", ["v1", "namespaces", space, "tables", name]:
                change = CommitTableRequest.model_validate_json(body)
                table = self.catalog.load_table((space, name))
                updates = tuple(_renumbered(update, table) for update in change.updates)
                self.catalog.commit_table(table, change.requirements, updates)
                return 200, _described(self.catalog.load_table((space, name)))
        return 404, _error("NotFound", f"{method} /{'/'.join(parts)}", 404)


def _renumbered(update: TableUpdate, table: Table) -> TableUpdate:
    if isinstance(update, AddSchemaUpdate):
        numbered = update.schema_.model_copy(update={"schema_id": max(table.schemas()) + 1})
        return AddSchemaUpdate(schema=numbered)
    return update


def _described(table: Table) -> dict[str, Any]:
    metadata = table.metadata.model_dump(mode="json", by_alias=True)
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _error(kind: str, text: str, code: int) -> dict[str, Any]:
    return {"error": {"message": text, "type": kind, "code": code}}


def _handler(server: RestServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            status, found = server.answer(self.command, path, self.headers.get("Authorization", ""), body)
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _reply  # noqa: N815 - the names are http.server's

        def log_message(self, *_: object) -> None:
            pass

    return Handler
