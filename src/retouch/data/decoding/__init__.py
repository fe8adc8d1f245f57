"""From a file, or its bytes, to pixels; in this process, or in several."""
