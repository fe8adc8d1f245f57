"""Where labeled images come from: one file per benchmark, one per format of your own data."""
