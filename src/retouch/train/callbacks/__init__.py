"""What happens in a run, told to whoever wants to know."""
