"""CUDA C++ as NVRTC compiles it: without nvcc's headers and without host code."""
