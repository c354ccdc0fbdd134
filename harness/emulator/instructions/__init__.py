"""PTX instructions: for each kind a module of makers, which return the functions that execute them."""
