"""The compilers: NVRTC for CUDA C++, nvJitLink for PTX, what ptxas reports, and a process for them."""
