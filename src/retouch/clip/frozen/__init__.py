"""What a run never changes, computed once: lower blocks, by image and by prompt."""
