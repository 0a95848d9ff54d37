"""What is about the RN-D paper alone: its scores, its runtime table, its proposition."""
