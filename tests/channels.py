# SPDX-License-Identifier: Apache-2.0
"""Channels of blocking clients, for the stubs of a test."""

from __future__ import annotations

import grpc
from tidemark.rpc.security.channels import BlockingChannels


def opened(channels: BlockingChannels, address: str) -> grpc.Channel:
    """The channel to an address, which is closed when its files or the broker change."""
    with channels.lent(address) as channel:
        return channel
