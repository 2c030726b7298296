"""A DLRM whose tables are shared out over actors; its dense part stays with the gateway."""
