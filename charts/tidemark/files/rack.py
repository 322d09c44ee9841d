# SPDX-License-Identifier: Apache-2.0
"""Adds the rack of the node to a broker's file of settings; runs once before the broker starts.

Environment: NODE_NAME, RACK_LABEL, and the paths CONFIG_FROM and CONFIG_TO. The script reads the node from the API
server with the mounted service account token. A node without the label gives no rack.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("ACCOUNT_DIRECTORY", "/var/run/secrets/kubernetes.io/serviceaccount"))
ATTEMPTS = 10
PAUSE_S = float(os.environ.get("PAUSE_S", "1"))


def labels_of(node: str) -> dict[str, str]:
    """The labels of a node; raises OSError if the API server does not return the node."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    scheme = os.environ.get("API_SCHEME", "https")
    url = f"{scheme}://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}/api/v1/nodes/{node}"
    token = (ACCOUNT / "token").read_text().strip()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt")) if scheme == "https" else None
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        labels = json.load(answer)["metadata"].get("labels", {})
    return {str(name): str(value) for name, value in labels.items()}


def main() -> int:
    """Exit with status 1 and a sentence if the node cannot be read: a broker without its rack gets wrong replicas."""
    node, label = os.environ["NODE_NAME"], os.environ["RACK_LABEL"]
    for attempt in range(1, ATTEMPTS + 1):
        try:
            rack = labels_of(node).get(label, "")
            break
        except urllib.error.HTTPError as error:
            why = f"HTTP {error.code}: its service account must be allowed to get nodes, or set rack.source: none"
        except OSError as error:
            why = str(error)
        sys.stderr.write(f"node {node} could not be read, attempt {attempt} of {ATTEMPTS}: {why}\n")
        if attempt == ATTEMPTS:
            return 1
        time.sleep(PAUSE_S)
    settings = Path(os.environ["CONFIG_FROM"]).read_text()
    if rack:
        settings += f"\nbroker.rack: {json.dumps(rack)}\n"
    Path(os.environ["CONFIG_TO"]).write_text(settings)
    sys.stderr.write(f"node {node}: {label} is {rack}\n" if rack else f"node {node} has no label {label}: no rack\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
