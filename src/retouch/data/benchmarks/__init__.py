"""Published benchmarks, one file for each."""
