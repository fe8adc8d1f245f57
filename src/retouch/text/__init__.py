"""Text for people: plurals, unprintable characters, numbers and settings from strings."""
