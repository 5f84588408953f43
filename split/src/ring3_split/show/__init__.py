"""What a driver is made of: which functions are critical, by which chain of calls, and what else has to stay in the kernel."""
