"""What developers run on the repository itself."""
