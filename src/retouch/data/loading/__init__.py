"""From files to batches on the device: decoding, prefetch and progress."""
