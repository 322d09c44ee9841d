# SPDX-License-Identifier: Apache-2.0
"""The admin service: validates the requests of operators, and writes them to ZooKeeper."""
