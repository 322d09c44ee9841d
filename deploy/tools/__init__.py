# SPDX-License-Identifier: Apache-2.0
"""What a maintainer runs: the release, and the hooks of the documentation site."""
