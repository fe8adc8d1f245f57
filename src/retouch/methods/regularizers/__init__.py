"""What keeps earlier knowledge while a task is trained."""
