"""The results of a bench as tables: on the terminal while it runs, and as files."""
