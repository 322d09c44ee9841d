# SPDX-License-Identifier: Apache-2.0
"""Tools of maintainers: the release, and the hooks of the documentation site."""
