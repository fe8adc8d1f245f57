"""Where labelled images come from: one file a benchmark, one a form of anyone's own data."""
