"""Accounts of an epoch: samples, errors, events and the report of them."""
