"""Everything specific to the RN-D paper: its scores, its runtime table, its proposition."""
