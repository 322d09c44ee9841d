# SPDX-License-Identifier: Apache-2.0
"""The log directories of a broker, their checkpoints, and replicas that move between them."""
