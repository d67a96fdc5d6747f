"""What a placement costs in time, measured or estimated, and the cheapest one."""
