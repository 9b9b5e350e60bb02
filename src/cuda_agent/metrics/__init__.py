"""One definition per number: medians, speed-ups, their intervals and the roofline floor.

Pure functions of samples, without torch; every random choice takes an explicit seed.
"""
