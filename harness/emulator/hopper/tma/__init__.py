"""TMA: tensor maps, and the boxes that it copies."""
