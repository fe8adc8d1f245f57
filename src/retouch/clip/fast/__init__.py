"""What is there only for speed: compilation, CUDA graphs, attention kernels, quick loading."""
