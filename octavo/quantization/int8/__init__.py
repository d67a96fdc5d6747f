"""INT8: which nodes, with which ranges, corrected how."""





