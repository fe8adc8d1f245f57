"""`retouch bench`."""
