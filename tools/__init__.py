"""How the built-in pictures and the built-in model are made; not part of the package."""
