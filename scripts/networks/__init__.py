"""Models of transformers with random weights: their work, what it takes in turn, and their losses."""
