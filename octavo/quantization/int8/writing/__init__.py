"""Q and DQ laid into the graph, where the target's fusions find them."""
