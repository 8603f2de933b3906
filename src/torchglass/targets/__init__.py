"""The targets of users, as names or objects, and their inputs."""
