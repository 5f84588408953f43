"""How often a driver's functions call each other, seen as the unmodified driver runs in a guest."""
