"""PTX text, parsed into the declarations and instructions of its entries."""
