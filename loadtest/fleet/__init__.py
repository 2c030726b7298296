"""A discrete-event simulation of one server and of many, calibrated on a real one."""
