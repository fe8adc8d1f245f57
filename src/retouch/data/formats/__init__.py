"""The formats of people's own images: folders, tables, tar shards, Hugging Face data sets."""
