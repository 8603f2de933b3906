"""What many processes see of one training, taken together."""
