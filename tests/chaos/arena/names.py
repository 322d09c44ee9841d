# SPDX-License-Identifier: Apache-2.0
"""Names of the processes of a round."""

ZOOKEEPER = "zookeeper"
BROKERS = ("broker-0", "broker-1", "broker-2")
CONTROLLERS = ("controller-100", "controller-101")
