# SPDX-License-Identifier: Apache-2.0
"""The RPCs of clients: produce, fetch, offsets, DeleteRecords, producer ids, log directories."""
