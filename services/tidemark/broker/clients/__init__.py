"""The RPCs of clients: produce, fetch, offsets, DeleteRecords, producer ids, log directories."""
