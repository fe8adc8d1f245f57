"""What the program prints, and how a stopped command goes on."""
