# SPDX-License-Identifier: Apache-2.0
"""What the processes of a round are called."""

ZOOKEEPER = "zookeeper"
BROKERS = ("broker-0", "broker-1", "broker-2")
CONTROLLERS = ("controller-100", "controller-101")
