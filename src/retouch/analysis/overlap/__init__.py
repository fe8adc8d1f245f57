"""Do tasks share weights? The overlap of what the tasks of a run selected (the paper's Fig. 4)."""
