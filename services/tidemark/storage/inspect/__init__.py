# SPDX-License-Identifier: Apache-2.0
"""Logs and log directories as the CLI inspects and verifies them; the broker never imports these."""
