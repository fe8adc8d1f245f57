"""What happens to the weights when a task is learned."""
