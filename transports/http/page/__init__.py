"""The page at ``/`` of the admin listener: what is going on, what is served, and a playground."""
