"""How long a kernel takes for a product, as far as that is known without timing it."""
