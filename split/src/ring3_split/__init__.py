"""Cuts a Linux driver into a small kernel half and a large user half."""
