"""`retouch export` and `retouch push`."""
