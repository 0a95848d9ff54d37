"""Trunks of actor and critic, and encoders of observations."""
