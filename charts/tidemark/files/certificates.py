# SPDX-License-Identifier: Apache-2.0
"""Makes the authority of a cluster once, and its certificates where they are missing or end soon. Runs in a Job.

Environment: PLAN, JSON of the chart: `namespace`, `cluster`, `days`, `labels`, `certificates` (each with `secret`,
`role`, `name` and `hosts`), the names of the Secret `authority` and of the ConfigMap `trust`, `generation` and
`settle_s`. Another generation makes another authority. The former one stays trusted. Its certificates are replaced by
a run that is at least `settle_s` later: all pods must have seen the new authority before.
"""

import base64
import json
import os
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.model import TidemarkError

ACCOUNT = Path(os.environ.get("ACCOUNT_DIRECTORY", "/var/run/secrets/kubernetes.io/serviceaccount"))
CA, KEY, FORMER, GENERATION, SINCE = "ca.crt", "ca.key", "former.crt", "generation", "since"


def say(line: str, stream: TextIO = sys.stdout) -> None:
    """Write a line to the log of the pod."""
    stream.write(f"{line}\n")


class Api:
    """Secrets and ConfigMaps of one namespace."""

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        host = os.environ["KUBERNETES_SERVICE_HOST"]
        host = f"[{host}]" if ":" in host else host
        scheme = os.environ.get("API_SCHEME", "https")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        self._base = f"{scheme}://{host}:{port}/api/v1/namespaces/{namespace}"
        self._context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt")) if scheme == "https" else None
        self._labels = labels

    def get(self, kind: str, name: str) -> Any:
        """The object; None without one."""
        try:
            return self._call("GET", f"/{kind}/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def put(self, kind: str, name: str, data: dict[str, str], before: Any) -> None:
        """Create the object, or replace the data of the one that was read before; fails if another run was faster."""
        if before is None:
            metadata = {"name": name, "labels": self._labels}
            more = {"type": "kubernetes.io/tls" if "tls.crt" in data else "Opaque"} if kind == "secrets" else {}
            self._call("POST", f"/{kind}", {"metadata": metadata, "data": data, **more})
        else:
            self._call("PUT", f"/{kind}/{name}", {**before, "data": data})

    def _call(self, method: str, path: str, content: Any = None) -> Any:
        token = (ACCOUNT / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._base + path, data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=10, context=self._context) as answer:
            return json.load(answer)


def data_of(secret: Any) -> dict[str, bytes]:
    """The decoded data of a Secret; none without one."""
    return {name: base64.b64decode(value) for name, value in ((secret or {}).get("data") or {}).items()}


def encoded(data: dict[str, bytes]) -> dict[str, str]:
    """As the data of a Secret."""
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


def authority_of(api: Api, plan: Any, directory: Path) -> dict[str, bytes]:
    """The data of the authority's Secret: the present one, or one that is made now. Its files are in the directory."""
    before = api.get("secrets", plan["authority"])
    data = data_of(before)
    if not data or int(data[GENERATION]) != plan["generation"]:
        Authority.create(directory, plan["cluster"])
        made = {
            CA: (directory / CA).read_bytes(),
            KEY: (directory / KEY).read_bytes(),
            FORMER: former_of(api, plan, data),
        }
        made |= {GENERATION: str(plan["generation"]).encode(), SINCE: str(int(time.time())).encode()}
        api.put("secrets", plan["authority"], encoded(made), before)
        say(f"made authority {plan['generation']} of cluster {plan['cluster']}")
        data = made
    directory.mkdir(exist_ok=True)
    for name in (CA, KEY):
        (directory / name).write_bytes(data[name])
    return data


def former_of(api: Api, plan: Any, data: dict[str, bytes]) -> bytes:
    """The authorities that stay trusted after a new one is made: the present one, and those of certificates in use."""
    former = data.get(FORMER)
    if not former:
        return data.get(CA, b"")
    found = [data_of(api.get("secrets", wanted["secret"])).get("tls.crt") for wanted in plan["certificates"]]
    in_use = list(filter(None, map(certificate_in, found)))
    kept = [one for one in x509.load_pem_x509_certificates(former) if any(issued_by(one, each) for each in in_use)]
    return data[CA] + b"".join(one.public_bytes(Encoding.PEM) for one in kept)


def certificate_in(content: bytes | None) -> x509.Certificate | None:
    """The certificate; None without one, and for a damaged one."""
    try:
        return x509.load_pem_x509_certificate(content or b"")
    except ValueError:
        return None


def publish(api: Api, plan: Any, bundle: bytes) -> None:
    """Bring the authorities to services and clients, and to ZooKeeper's servers, which have them in their Secret."""
    before = api.get("configmaps", plan["trust"])
    if before is None or before.get("data") != {CA: bundle.decode()}:
        api.put("configmaps", plan["trust"], {CA: bundle.decode()}, before)
        say(f"ConfigMap {plan['trust']}: {bundle.count(b'BEGIN')} authorities are trusted")
    for wanted in plan["certificates"]:
        before = api.get("secrets", wanted["secret"])
        data = data_of(before)
        if data and data.get(CA) != bundle:
            api.put("secrets", wanted["secret"], encoded({**data, CA: bundle}), before)


def issued_by(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Whether the authority signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def reason_to_issue(
    present: bytes | None, authorities: bytes, uri: str, hosts: list[str], days: int, last: datetime
) -> str:
    """Why the certificate must be issued; empty if it need not. No certificate can end after `last`."""
    if not present:
        return "is missing"
    certificate = certificate_in(present)
    if certificate is None:
        return "is damaged"
    if not any(issued_by(one, certificate) for one in x509.load_pem_x509_certificates(authorities)):
        return "is of another authority"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    if {*names.get_values_for_type(x509.DNSName), *addresses} != set(hosts):
        return "has other names of hosts"
    if names.get_values_for_type(x509.UniformResourceIdentifier) != [uri]:
        return "has another identity"
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    ends_soon = end - now < timedelta(days=days) / 3 and (end < last or last < now)
    return f"ends in {(end - now).days} days" if ends_soon else ""


def issue(authority: Authority, role: str, name: str, hosts: list[str], days: int) -> dict[str, bytes]:
    """The certificate and its key."""
    if role == "zookeeper":
        files = authority.issue_zookeeper(name, hosts, days=days)
    elif role == "user":
        files = authority.issue_client(name, days=days)
    else:
        files = authority.issue_service(Role(role), name, hosts, days=days)
    return {"tls.crt": Path(files.certificate).read_bytes(), "tls.key": Path(files.key).read_bytes()}


def main() -> int:
    """Exit with status 1 and a sentence if the API server refuses a call; the Job tries again."""
    plan = json.loads(os.environ["PLAN"])
    api = Api(plan["namespace"], plan["labels"])
    try:
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary) / "authority"
            data = authority_of(api, plan, directory)
            bundle = data[CA] + data[FORMER]
            publish(api, plan, bundle)
            settled = not data[FORMER] or time.time() - int(data[SINCE]) >= plan["settle_s"]
            if not settled:
                say("certificates of the former authority stay until a later run: all pods must see the new one before")
            authority = Authority.load(directory)
            last = x509.load_pem_x509_certificate(data[CA]).not_valid_after_utc
            left = last - datetime.now(UTC)
            if left < timedelta(days=plan["days"]):
                say(f"authority {plan['generation']} ends in {left.days} days: raise security.certificates.generation")
            for wanted in plan["certificates"]:
                secret, role, name, hosts = (wanted[field] for field in ("secret", "role", "name", "hosts"))
                before = api.get("secrets", secret)
                uri = f"tidemark://{plan['cluster']}/{role}/{name}"
                trusted = data[CA] if settled else bundle
                why = reason_to_issue(data_of(before).get("tls.crt"), trusted, uri, hosts, plan["days"], last)
                if why:
                    pair = issue(authority, role, name, hosts, plan["days"])
                    api.put("secrets", secret, encoded({**pair, CA: bundle}), before)
                    say(f"issued {secret}, which {why}")
    except urllib.error.HTTPError as error:
        hint = "; `helm upgrade` creates a Secret that was deleted" if error.code == 403 else ""
        say(f"{error.url}: HTTP {error.code}: {error.read()[:300].decode(errors='replace')}{hint}", sys.stderr)
        return 1
    except TidemarkError as error:
        say(f"{error.message}. In the chart: raise security.certificates.generation", sys.stderr)
        return 1
    except OSError as error:
        say(f"the API server does not answer: {error}", sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
