"""Several devices that learn together: who is who, and what they tell each other."""
