"""What a driver is made of.

Which functions are critical, by which chain of calls, and what else has to stay in the kernel.
"""
