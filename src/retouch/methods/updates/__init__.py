"""What a method trains: all weights, selected ones, adapters or prompts."""
