"""Variables in constant memory, which host code fills: to a kernel they are what parameters are."""
