"""Services of the device's runtime: printf, assert, malloc; and the stack."""
