"""How often the functions of a driver call each other, seen while the unmodified driver works in a guest."""
