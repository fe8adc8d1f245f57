"""What all figures share: the theme, axes, label layout, and how numbers are formatted."""
