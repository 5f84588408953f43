"""How much of each driver is critical.

Figure 2 of [Microdrivers] for any kernel, by every counting rule.

A driver is linked once at each precision, every function gets one bit for each rule under which it
is critical (`marks`), and all numbers are sums over those bits (`count`). What comes out is a
`Study`; the table, the CSV, the picture and the page are made from it and from nothing else. The
page is more than another form of the numbers: only it has the calls that make each function
critical under each rule, which `show` has of one driver under one rule.
"""
