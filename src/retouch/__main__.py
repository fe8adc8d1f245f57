"""`python -m retouch` is the same as `retouch`."""

from retouch.cli import main

main()
