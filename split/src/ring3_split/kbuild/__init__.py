"""The kernel's own build description, evaluated by GNU make; nothing of the kernel is built."""
