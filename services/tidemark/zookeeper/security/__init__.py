# SPDX-License-Identifier: Apache-2.0
"""TLS to ZooKeeper, and the access to Tidemark's znodes."""
