"""What do neurons look at? gScoreCAM heat maps of the first MLP layers (the paper's Fig. 3)."""
