"""The numbers of emulated threads: how they are stored, and arithmetic as PTX defines it."""
