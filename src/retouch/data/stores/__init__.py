"""Where images are stored: files, tar shards, arrays, a cache, or other stores."""
