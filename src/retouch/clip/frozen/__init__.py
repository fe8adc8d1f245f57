"""What a run never changes, computed once: lower blocks and neurons, by image and by prompt."""
