"""Code that exists only for speed: compilation, CUDA graphs, attention kernels, quick loading."""
