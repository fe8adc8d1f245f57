"""`retouch eval`."""
