"""The pages, and the script that makes their pictures."""
