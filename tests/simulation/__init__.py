"""The engine under thousands of random schedules, on a clock and threads that move when told."""
