# SPDX-License-Identifier: Apache-2.0
"""The clients are imported at their first use."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from types import ModuleType

import pytest
import tidemark
import tidemark.client
import tidemark.client.aio
from tidemark.client import acls, argument_types, lazy_imports, quotas
from tidemark.client.aio.admin import acls as admin_acls
from tidemark.client.aio.admin import client
from tidemark.client.aio.admin import quotas as admin_quotas

ADMINISTERS = """
import sys
from tidemark.client import AdminClient
import tidemark.cli.app
import tidemark.client.typed.blocking_schemas  # for Spark, in a new process at each load()
print(*({"pyarrow", "numpy", "pandas"} & set(sys.modules)))
"""


@pytest.mark.parametrize("package", [tidemark.client, tidemark.client.aio])
def test_every_name_of_a_package_can_be_imported(package: ModuleType) -> None:
    found = {name: getattr(package, name) for name in package.__all__}
    assert {"AdminClient", "Consumer", "Groups", "Producer"} <= set(found)
    assert None not in found.values()


ARGUMENT_MODULES = (tidemark.client, acls, quotas)


def test_each_class_that_a_method_of_an_admin_client_takes_is_a_name_of_the_client() -> None:
    source = "".join(inspect.getsource(module) for module in (client, admin_acls, admin_quotas, argument_types))
    wanted = set(re.findall(r"\binstances?\((?:\"\w+\"|name), \w+, ([A-Z]\w+)\)", source))
    assert {"ConfigResource", "PartitionReassignment", "QuotaChange"} <= wanted
    names = {name for module in ARGUMENT_MODULES for name in module.__all__}
    assert wanted - names == set()


def test_unknown_name_is_an_attribute_error() -> None:
    load = lazy_imports.on_demand("tidemark.client", {"sync.admin": ("AdminClient",)})
    assert load("AdminClient") is tidemark.client.AdminClient
    with pytest.raises(AttributeError, match=r"module 'tidemark.client' has no attribute 'Admin'"):
        load("Admin")
    with pytest.raises(ImportError):
        from tidemark.client import Admin  # noqa: F401


def test_admin_client_and_requests_for_schemas_import_no_arrow() -> None:
    done = subprocess.run([sys.executable, "-c", ADMINISTERS], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.split() == []


def test_the_package_itself_has_the_tables_and_imports_them_at_their_first_use() -> None:
    assert tidemark.read_table is tidemark.client.read_table
    assert tidemark.scan is tidemark.client.scan
    with pytest.raises(AttributeError, match="module 'tidemark' has no attribute 'sacn'"):
        tidemark.sacn  # noqa: B018
    code = "import sys, tidemark; print(*({'tidemark.client', 'pyarrow', 'polars'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.split() == []
