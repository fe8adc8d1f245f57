"""`retouch delta`: show what was learned, apply it, undo it, merge several, import an adapter."""
