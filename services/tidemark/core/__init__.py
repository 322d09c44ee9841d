# SPDX-License-Identifier: Apache-2.0
"""The replication protocol and the controller as state machines. Pure."""
