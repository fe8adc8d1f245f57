"""Where is the knowledge? Causal tracing through the blocks of a CLIP (the paper's Fig. 2)."""
