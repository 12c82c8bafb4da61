"""Programs as nests of loops over named axes, and their one lowering to the loop IR."""
