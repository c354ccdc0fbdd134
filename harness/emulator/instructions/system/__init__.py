"""What the device's runtime does for a kernel: printf, assert, malloc; and the stack."""
