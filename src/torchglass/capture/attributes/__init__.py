"""What a live model holds, asked for piece by piece and never run unasked."""
