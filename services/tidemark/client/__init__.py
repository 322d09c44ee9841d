"""Producer, Consumer and AdminClient; async ones in `tidemark.client.aio`."""
